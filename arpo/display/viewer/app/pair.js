// Two runs side by side: the same tasks, and where they can be paired, the same seeds.
"use strict";

PAGES.pair = ([one, other], _parts, query) => {
  const list = query.get("list") || "";
  const lists = [...new Set([one, other].flatMap((run) => run.all().map((group) => listOf(run, group))))].sort(natural);
  const shown = [list, "training"].find((name) => lists.includes(name)) ?? lists[0];
  const tables = [one, other].map((run) => run.table(run.all().filter((group) => listOf(run, group) === shown)));
  const tasks = [...tables[0].cells.keys()].filter((task) => tables[1].cells.has(task)).sort(natural);
  const columns = tables[0].columns.filter((column) => tables[1].columns.includes(column));
  return h("article", {},
    h("h1", {}, "Two runs"),
    h("div", { class: "facts" }, [one, other].map((run, at) => h("div", { class: "fact" }, h("b", {}, "AB"[at]), h("span", {}, link(address([run.letter]), {}, said(run.index.name)))))),
    pairedCurves(one, other),
    h("div", { class: "head" }, h("h2", {}, "Success of B minus success of A"),
      h("nav", { class: "choice" }, lists.map((name) => link(address(["pair"], { list: name }), { class: name === shown ? "chosen" : "" }, name)))),
    tasks.length && columns.length ? differences(one, other, tables, tasks, columns) : h("p", { class: "note" }, "The runs have no task and iteration in common here."));
};

// `training`, or the list of an evaluation.
function listOf(run, group) {
  return run.training(group) ? "training" : [run.groups.split[group], ...run.column(group).split("/").slice(1)].join(" ");
}

function pairedCurves(one, other) {
  const curve = (run, name) => new Map(run.index.curves).get(name);
  const of = (title, name, options) => chart(title, [{ name: "A", points: curve(one, name) }, { name: "B", points: curve(other, name) }], options);
  return h("section", { class: "charts" }, of("success of rollouts", "rollout/success_rate", { low: 0, high: 1, format: percent }),
    of("success on training tasks", "val/in_domain/success_rate", { low: 0, high: 1, format: percent }),
    of("all failed", "group/all_failed", { low: 0, high: 1, format: percent }), of("entropy", "policy/entropy", { low: 0 }));
}

function differences(one, other, tables, tasks, columns) {
  return heat(tasks, columns, {
    kind: "difference",
    columnName: (column) => column.split("/")[0],
    rowTo: (task) => address(["pair", "group", task, columns[0]]),
    columnTo: (column) => address(["pair", "group", tasks[0], column]),
    cell: (task, column) => {
      const rates = [one, other].map((run, at) => run.rate(tables[at].cells.get(task).get(column) || []).share);
      if (rates.includes(null)) return null;
      const gap = rates[1] - rates[0];
      return { share: Math.abs(gap), to: address(["pair", "group", task, column]), marks: gap < 0 ? "down" : gap > 0 ? "up" : "even",
        tip: `${task} · ${column}\nA ${percent(rates[0])}, B ${percent(rates[1])}` };
    },
  });
}

PAGES["pair/group"] = async (runs, [task, column]) => {
  const groups = runs.map((run) => run.all().filter((group) => run.column(group) === column && run.taskOfGroup(group) === task));
  if (groups.some((found) => !found.length)) return missingPage("One of the two runs has no such group.");
  const sides = await Promise.all(runs.map(async (run, at) => (await Promise.all(groups[at].map(async (group) => {
    const members = await membersOf(run, group);
    return run.rows(group).map((row, place) => ({ run, row, member: members[place] }));
  }))).flat().filter(({ row }) => !run.is(row, INJECTED))));
  const seedOf = ({ run, row }) => run.episodes.seed[row];
  const seeds = sides.map((side) => new Set(side.map(seedOf)));
  const shared = [...seeds[0]].filter((seed) => seeds[1].has(seed));
  const pairs = shared.length
    ? shared.map((seed) => sides.map((side) => side.find((each) => seedOf(each) === seed)))
    : Array.from({ length: Math.max(...sides.map((side) => side.length)) }, (_, at) => sides.map((side) => side[at]));
  return h("article", {},
    h("p", { class: "crumbs" }, link(address(["pair"]), {}, "two runs"), " › ", said(column)),
    h("h1", {}, said(task), h("small", {}, " ", said(column))),
    h("p", { class: "quiet" }, shared.length ? `${plural(shared.length, "pair")} of the same task and the same seed` : "No two episodes have the same seed: they stand in the order of their groups."),
    pairs.map((pair) => h("section", { class: "paired" }, h("h2", {}, shared.length ? `seed ${seedOf(pair[0])}` : ""), pairRows(pair))));
};

function pairRows(pair) {
  const [one, other] = pair;
  const fork = one && other && one.member && other.member ? parting(other.member, one.member) : null;
  return pair.map((each, at) => (each ? h("div", { class: "side" }, h("span", { class: "letter" }, "AB"[at]), memberRow(each.run, each.row, each.member, { fork: at ? fork : null })) : null));
}
