// The page of a run: what it is, how it went, and every group of it in one picture.
"use strict";

const PAGES = {};

PAGES.run = (run, _parts, query) => {
  const everyTraining = run.all().filter((group) => run.training(group));
  const splits = [...new Set(run.all().filter((group) => !run.training(group)).map((group) => run.groups.split[group]))];
  return h("article", {},
    h("h1", {}, said(run.index.name)),
    summary(run, everyTraining),
    warnings(run),
    curves(run),
    everyTraining.length ? tasksByIteration(run, everyTraining, query) : null,
    evaluations(run),
    splits.map((split) => otherSplit(run, split, query)),
    provenance(run));
};

function summary(run, training) {
  const { columns } = run.table(training);
  const tasks = new Set(training.map((group) => run.taskOfGroup(group)));
  const fact = (value, name) => h("div", { class: "fact" }, h("b", {}, value), h("span", {}, name));
  const few = Math.max(1, Math.round(columns.length / 10));
  const rateOf = (some) => run.rate(training.filter((group) => some.includes(run.column(group)))).share;
  const injected = (new Map(run.index.curves).get("replay/injected") || []).reduce((sum, [, count]) => sum + count, 0);
  const shownAgain = run.episodes.flags.filter((flags) => flags & INJECTED).length;
  return h("div", { class: "facts" },
    fact((run.episodes.id.length - shownAgain).toLocaleString("en"), "episodes"),
    training.length ? fact(columns.length, columns.length === 1 ? "iteration" : "iterations") : null,
    training.length ? fact(tasks.size, "training tasks") : null,
    training.length ? fact(`${percent(rateOf(columns.slice(0, few)))} → ${percent(rateOf(columns.slice(-few)))}`,
      `success, first and last ${few === 1 ? "iteration" : `${few} iterations`}`) : null,
    fact(shownAgain || injected, "replayed in updates"));
}

function warnings(run) {
  const { broken: lines, torn, wordsKnown } = run.index;
  return [
    lines.length
      ? h("details", { class: "broken" }, h("summary", {}, `${plural(lines.length, "broken record")}: they are shown here and nowhere else`),
        lines.map(([file, line, reason, text]) => h("div", { class: "record" },
          h("p", {}, h("b", {}, said(file), line ? `, line ${line}` : ""), " ", said(reason)), text ? h("pre", {}, said(text)) : null)))
      : null,
    torn.map((file) => h("p", { class: "note" }, said(file), " ends in a part of a record, which is being written or was cut by a crash; it is left out.")),
    wordsKnown ? null : h("p", { class: "note" }, "The vocabulary of the checkpoint is broken, or not where config.yaml says: tokens are shown by number."),
  ];
}

function curves(run) {
  const found = new Map(run.index.curves);
  const of = (name) => found.get(name);
  return h("section", { class: "charts" },
    chart("success", [
      { name: "rollouts", points: of("rollout/success_rate") },
      { name: "training tasks", points: of("val/in_domain/success_rate"), kind: "thick" },
      { name: "held out", points: of("val/held_out/success_rate"), kind: "thick" },
    ], { low: 0, high: 1, format: percent }),
    chart("groups without a signal", [
      { name: "all failed", points: of("group/all_failed") },
      { name: "all succeeded", points: of("group/all_succeeded") },
    ], { low: 0, high: 1, format: percent }),
    chart("replayed episodes", [{ name: "injected", points: of("replay/injected") }], { low: 0 }),
    chart("entropy", [{ name: "of the policy", points: of("policy/entropy") }], { low: 0 }),
    chart("ratio", [{ name: "max", points: of("train/ratio_max") }, { name: "min", points: of("train/ratio_min") }]),
    chart("lag", (of("rollout/lag_mean") || []).some(([, lag]) => lag > 0) ? [{ name: "mean", points: of("rollout/lag_mean") }] : [], { low: 0 }));
}

// --- tasks by iterations -------------------------------------------------------------------------------------------

function tasksByIteration(run, groups, query) {
  const order = query.get("order") || "success";
  const rows = rowsFor(run, groups, query.get("rows"));
  const to = (changed) => address([run.letter], { order: query.get("order"), rows: query.get("rows"), ...changed });
  return h("section", {},
    h("div", { class: "head" }, h("h2", {}, `${ROWS[rows]} by iterations`),
      choices(ROWS, rows, (name) => to({ rows: name })), choices(ORDERS, order, (name) => to({ order: name })), legend(run, groups, rows)),
    rateTable(run, groups, rows, order));
}

const ORDERS = { success: "by success", name: "by name", gain: "by gain" };
const ROWS = { task: "Tasks", domain: "Domains" };

function choices(names, chosen, to) {
  return h("nav", { class: "choice" }, Object.entries(names).map(([name, text]) => link(to(name), { class: name === chosen ? "chosen" : "" }, text)));
}

function sorted(run, cells, order) {
  const groupsOf = (task) => [...cells.get(task).values()].flat();
  const half = (task, part) => {
    const groups = groupsOf(task), middle = groups.length / 2;
    return run.rate(groups.filter((_, at) => (part ? at >= middle : at < middle))).share ?? 0;
  };
  const value = { success: (task) => run.rate(groupsOf(task)).share ?? 0, gain: (task) => half(task, 1) - half(task, 0) }[order];
  const tasks = [...cells.keys()].sort(natural);
  if (!value) return tasks;
  const values = new Map(tasks.map((task) => [task, value(task)]));
  return tasks.sort((one, other) => values.get(other) - values.get(one));
}

function legend(run, groups, rows) {
  const several = [...run.table(groups, rows).cells.values()].some((row) => [...row.values()].some((found) => found.length > 1));
  const sample = (marks, share, text) => h("span", {}, h("i", { class: `cell ${marks}`, css: { "--share": share } }), text);
  return h("div", { class: "legend" }, sample("failed", "0%", "all failed"), sample("", "25%", ""), sample("", "50%", ""), sample("", "75%", "some succeeded"),
    sample("", "100%", "all succeeded"), several ? sample("partly", "50%", "one of its groups all failed") : null, sample("replay", "25%", "replay injected"));
}

function rateTable(run, groups, rows, order, columnName) {
  const { cells, columns } = run.table(groups, rows);
  return heat(sorted(run, cells, order), columns, {
    columnName,
    rowTo: (name) => address([run.letter, "episodes"], { [rows]: name }),
    columnTo: (column) => run.iterationAddress(column),
    cell: (name, column) => {
      const found = cells.get(name).get(column);
      if (!found) return null;
      const { succeeded, count, share } = run.rate(found);
      const failed = found.filter((group) => run.training(group) && run.rate([group]).succeeded === 0).length;
      const injected = found.some((group) => run.rows(group).some((row) => run.is(row, INJECTED)));
      const marks = [succeeded === 0 ? "failed" : failed ? "partly" : "", injected ? "replay" : ""].join(" ");
      const where = found.length > 1 ? run.iterationAddress(column, { [rows]: name }) : run.groupAddress(found[0]);
      const tip = `${name} · ${columnName ? columnName(column) : `iteration ${column}`}\n${succeeded} of ${plural(count, "episode")} succeeded` +
        (succeeded === 0 ? " (all failed)" : "") + (injected ? "\nreplay put a past success in" : "") +
        (found.length > 1 ? `\n${found.length} groups${failed ? `, ${failed} failed as a whole` : ""}` : "");
      return { share: share ?? 0, to: where, tip, marks };
    },
  });
}

// --- evaluations ---------------------------------------------------------------------------------------------------

function evaluations(run) {
  const rows = run.index.evaluations;
  if (!rows.length) return null;
  const columns = new Set(run.all().map((group) => run.column(group)));
  const part = (share) => `${100 * share}%`; // a length: what people read has a space in it
  return h("section", {}, h("h2", {}, "Evaluations"),
    h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, ["after iteration", "tasks", "success", "95 % interval", "episodes", "lost"].map((name) => h("th", {}, name)))),
      h("tbody", {}, rows.map(([iteration, name, share, low, high, episodes, lost]) => {
        const column = `eval-${iteration}/${name}`;
        const label = said(name || "all");
        return h("tr", {}, h("td", {}, iteration), h("td", {}, columns.has(column) ? link(run.iterationAddress(column), {}, label) : label),
          h("td", {}, h("span", { class: "meter" }, h("i", { css: { left: part(low), width: part(high - low) } }), h("b", { css: { left: part(share) } })), ` ${percent(share)}`),
          h("td", { class: "quiet" }, `${percent(low)} – ${percent(high)}`), h("td", {}, episodes), h("td", {}, lost ?? ""));
      }))));
}

function otherSplit(run, split, query) {
  const groups = run.all().filter((group) => run.groups.split[group] === split);
  const listOf = (column) => column.split("/").slice(1).join("/");
  const lists = [...new Set(groups.map((group) => listOf(run.column(group))))].sort(natural);
  return lists.map((list) => {
    const listed = groups.filter((group) => listOf(run.column(group)) === list);
    const rows = rowsFor(run, listed, query.get("rows"));
    const name = (column) => column.split("/")[0].replace(`${split}-`, "");
    return h("section", {}, h("h2", {}, split === "eval" ? "Evaluation" : said(split), list ? [" · ", said(list)] : null),
      rateTable(run, listed, rows, query.get("order") || "success", (column) => (split === "eval" ? `after ${name(column)}` : name(column))));
  });
}

function provenance(run) {
  if (!run.index.origin.length) return null;
  return h("section", {}, h("h2", {}, "Where it came from"), h("dl", {}, run.index.origin.map(([word, fact]) => [h("dt", {}, word), h("dd", {}, said(fact))])));
}

// --- one iteration: all of its groups ------------------------------------------------------------------------------

PAGES.iteration = (run, [column], query) => {
  const asked = Object.keys(ROWS).filter((rows) => query.get(rows));
  const fitting = run.all().filter((group) => asked.every((rows) => run.nameOf(group, rows) === query.get(rows)));
  const groups = fitting.filter((group) => run.column(group) === column);
  if (!groups.length) return missingPage("There is no such iteration in this run.");
  const { columns } = run.table(fitting.filter((group) => run.groups.split[group] === run.groups.split[groups[0]]));
  const at = columns.indexOf(column);
  const to = (other) => other && run.iterationAddress(other, Object.fromEntries(query));
  const { succeeded, count } = run.rate(groups);
  const training = run.training(groups[0]);
  return h("article", {},
    asked.length ? h("p", { class: "crumbs" }, link(run.iterationAddress(column), {}, training ? "iteration " : "", said(column)), " › ", asked.map((rows) => said(query.get(rows)))) : null,
    h("div", { class: "head" }, h("h1", {}, training ? "Iteration " : "", said(column), asked.map((rows) => [" · ", said(query.get(rows))])), steps(to(columns[at - 1]), to(columns[at + 1]))),
    h("p", { class: "quiet" }, `${plural(groups.length, "group")}, ${succeeded} of ${plural(count, "episode")} succeeded`,
      training ? `; curves show it at ${Number(column) + 1}, the number of updates after it` : ""),
    groups.map((group) => h("section", { class: "groupline" },
      h("h2", {}, link(run.groupAddress(group), {}, said(run.taskOfGroup(group)), h("small", {}, ` ${run.groups.key[group]}`))),
      later(async () => {
        const members = await membersOf(run, group);
        return h("div", { class: "rows small" }, members.map((member, index) => memberRow(run, run.rows(group)[index], member)));
      }, { css: { "min-height": `${90 * run.rows(group).length}px` } }))));
};

function memberRow(run, row, member, { fork = null, most = 0, extra = null, query = {} } = {}) {
  const highest = most || run.rows(run.episodes.group[row]).reduce((sum, each) => Math.max(sum, Math.abs(run.episodes.advantage[each] ?? 0)), 0);
  const kind = `${run.is(row, INJECTED) ? " injected" : ""}${run.is(row, LEFT_OUT) ? " leftout" : ""}`;
  return h("div", { class: `member${kind}` },
    h("div", { class: "who" }, h("div", { class: "name" }, link(run.episodeAddress(row), {}, said(run.episodes.id[row]))), advantageBar(run, row, highest),
      h("div", { class: "chips" }, chips(run, row)), extra),
    member ? strip(member, { fork, query }) : broken("it changed while the viewer was written, or cannot be read"));
}

function steps(before, after) {
  const one = (to, sign, name) => (to ? link(to, { "aria-label": name, tip: name }, sign) : h("span", { class: "quiet" }, sign));
  KEYS.set("[", () => before && (location.hash = before));
  KEYS.set("]", () => after && (location.hash = after));
  return h("nav", { class: "steps" }, one(before, "‹", "the one before: ["), one(after, "›", "the next one: ]"));
}

const missingPage = (why) => h("article", {}, h("h1", {}, "Nothing here"), h("p", {}, why));
