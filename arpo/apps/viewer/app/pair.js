// Two runs side by side: the same tasks, and where they can be paired, the same seeds.
"use strict";

PAGES.pair = ([one, other], _parts, query) => {
  const list = query.get("list") || "";
  const lists = [...new Set([one, other].flatMap((run) => run.all().map((group) => listOf(run, group))))].sort(natural);
  const shown = [list, "training"].find((name) => lists.includes(name)) ?? lists[0];
  const groups = [one, other].map((run) => run.all().filter((group) => listOf(run, group) === shown));
  const rows = [one, other].map((run, at) => rowsFor(run, groups[at], query.get("rows"))).includes("domain") ? "domain" : "task";
  const tables = [one, other].map((run, at) => run.table(groups[at], rows));
  const shared = (task, column) => tables.every(({ cells }) => cells.get(task)?.has(column));
  const every = [...tables[0].cells.keys()].sort(natural);
  const tasks = every.filter((task) => tables[0].columns.some((column) => shared(task, column)));
  const columns = tables[0].columns.filter((column) => tasks.some((task) => shared(task, column)));
  return h("article", {},
    h("h1", {}, "Two runs"),
    h("div", { class: "facts" }, [one, other].map((run, at) => h("div", { class: "fact" }, h("b", {}, "AB"[at]), h("span", {}, link(address([run.letter]), {}, said(run.index.name)))))),
    pairedCurves(one, other),
    h("div", { class: "head" }, h("h2", {}, "Success of B minus success of A"),
      choices(Object.fromEntries(lists.map((name) => [name, name])), shown, (name) => address(["pair"], { list: name, rows: query.get("rows") })),
      choices(ROWS, rows, (name) => address(["pair"], { list, rows: name })), differenceLegend()),
    tasks.length ? differences([one, other], tables, tasks, columns, rows, shared) : h("p", { class: "note" }, "The runs have no task and iteration in common here."));
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

function differenceLegend() {
  const sample = (colour, share, text) => h("span", {}, h("i", { class: "cell", css: { "--colour": `var(--${colour})`, "--share": share } }), text);
  return h("div", { class: "legend" }, sample("bad", "70%", "A succeeds more"), sample("none", "0%", "the same"), sample("good", "70%", "B succeeds more"));
}

function differences(runs, tables, tasks, columns, rows, shared) {
  const to = (task, column) => address(["pair", "group", task, column], { rows: rows === "task" ? "" : rows });
  return heat(tasks, columns, {
    kind: "difference",
    columnName: (column) => column.split("/")[0],
    rowTo: (task) => to(task, columns.find((column) => shared(task, column))),
    columnTo: (column) => to(tasks.find((task) => shared(task, column)), column),
    cell: (task, column) => {
      if (!shared(task, column)) return null;
      const rates = runs.map((run, at) => run.rate(tables[at].cells.get(task).get(column)).share);
      const gap = rates[1] - rates[0];
      return { share: Math.abs(gap), to: to(task, column), marks: gap < 0 ? "down" : gap > 0 ? "up" : "even",
        tip: `${task} · ${column}\nA ${percent(rates[0])}, B ${percent(rates[1])}` };
    },
  });
}

PAGES["pair/group"] = async (runs, [name, column], query) => {
  const rows = query.get("rows") === "domain" ? "domain" : "task";
  const groups = runs.map((run) => run.all().filter((group) => run.column(group) === column && run.nameOf(group, rows) === name));
  if (groups.some((found) => !found.length)) return missingPage("One of the two runs has no such group.");
  const sides = await Promise.all(runs.map(async (run, at) => (await Promise.all(groups[at].map(async (group) => {
    const members = await membersOf(run, group);
    return run.rows(group).map((row, place) => ({ run, row, member: members[place] }));
  }))).flat().filter(({ row }) => !run.is(row, INJECTED))));
  const seedOf = ({ run, row }) => run.episodes.seed[row];
  const placeOf = (each) => `${seedOf(each)} ${each.run.task(each.row)}`;
  const places = sides.map((side) => new Map(side.map((each) => [placeOf(each), each])));
  const shared = [...places[0].keys()].filter((place) => places[1].has(place));
  const alone = places[0].size + places[1].size - 2 * shared.length;
  const pairs = shared.length
    ? differingFirst(shared.map((place) => places.map((side) => side.get(place))))
    : Array.from({ length: Math.max(...sides.map((side) => side.length)) }, (_, at) => sides.map((side) => side[at]));
  return h("article", {},
    h("p", { class: "crumbs" }, link(address(["pair"]), {}, "two runs"), " › ", column.includes("/") ? "" : "iteration ", said(column)),
    h("h1", {}, said(name), h("small", {}, " ", said(column))),
    h("p", { class: "quiet" }, shared.length ? `${plural(shared.length, "pair")} of the same task and the same seed${alone ? `; ${plural(alone, "episode")} of one run alone` : ""}` : "No two episodes have the same seed: they stand in the order of their groups."),
    pairs.map((pair) => h("section", { class: "paired" }, h("h2", {}, shared.length ? [rows === "task" ? "" : [said(pair[0].run.task(pair[0].row)), ", "], `seed ${seedOf(pair[0])}`] : ""), pairRows(pair))));
};

// Pairs of which one run solved what the other did not stand before the others.
function differingFirst(pairs) {
  const differs = (pair) => new Set(pair.map(({ run, row }) => run.success(row))).size - 1;
  return pairs.sort((one, other) => differs(other) - differs(one));
}

function pairRows(pair) {
  const [one, other] = pair;
  const alike = one?.member && other?.member && one.run.task(one.row) === other.run.task(other.row);
  const fork = alike ? parting(other.member, one.member) : null;
  return pair.map((each, at) => (each ? h("div", { class: "side" }, h("span", { class: "letter" }, "AB"[at]), memberRow(each.run, each.row, each.member, { fork: at ? fork : null })) : null));
}
