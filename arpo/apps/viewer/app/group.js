// The page of a group: its episodes side by side, and where each parts from the one it is compared with.
"use strict";

PAGES.group = async (run, [key], query) => {
  const group = run.byKey.get(key);
  if (group === undefined) return missingPage("There is no such group in this run.");
  const rows = run.rows(group);
  const members = await membersOf(run, group);
  const chosen = Number(query.get("ref"));
  const reference = query.has("ref") && rows[chosen] !== undefined ? chosen : best(run, rows);
  const order = query.get("order") || "place";
  const places = rows.map((_, place) => place);
  if (order === "reward") places.sort((a, b) => run.is(rows[a], LEFT_OUT) - run.is(rows[b], LEFT_OUT) || worth(run, rows[b]) - worth(run, rows[a]) || a - b);
  const keep = { ref: query.get("ref"), order: order === "place" ? "" : order };
  return h("article", {},
    h("p", { class: "crumbs" }, link(address([run.letter]), {}, said(run.index.name)), " › ",
      link(run.iterationAddress(run.column(group)), {}, run.training(group) ? "iteration " : "", said(run.column(group)))),
    h("div", { class: "head" }, h("h1", {}, said(run.taskOfGroup(group)), h("small", {}, " ", said(key))), neighbours(run, group)),
    h("p", { class: "instruction" }, said(run.instruction(rows[0]))),
    h("p", { class: "quiet" }, verdict(run, group)),
    h("nav", { class: "choice" }, ["place", "reward"].map((name) => link(run.groupAddress(group, { ...keep, order: name === "place" ? "" : name }), { class: name === order ? "chosen" : "" }, `by ${name}`))),
    h("div", { class: "rows" }, places.map((place) => groupRow(run, rows, members, place, reference, keep))));
};

// The member that the others are compared with: the first of the highest worth.
function best(run, rows) {
  return rows.reduce((found, row, place) => (worth(run, row) > worth(run, rows[found]) ? place : found), 0);
}

function worth(run, row) {
  return run.episodes.advantage[row] ?? run.episodes.taskReward[row] + run.episodes.formatReward[row];
}

function verdict(run, group) {
  const { succeeded, count } = run.rate([group]);
  const parts = [`${succeeded} of ${plural(count, "episode")} succeeded`];
  if (count > 1 && succeeded === 0) parts.push("all failed");
  if (run.rows(group).some((row) => run.is(row, INJECTED))) parts.push("replay put a past success in");
  if (run.groups.update[group] !== null) parts.push(`learned from in update ${run.groups.update[group]}, by policy version ${run.groups.version[group]}`);
  else if (run.training(group)) parts.push("no record of an update");
  const advantages = run.rows(group).map((row) => run.episodes.advantage[row]).filter((value) => value !== null);
  if (advantages.length && advantages.every((value) => value === 0)) parts.push("all rewards are equal, so every advantage is 0 and it moved nothing");
  return parts.join("; ");
}

function neighbours(run, group) {
  const same = run.all().filter((each) => run.groups.split[each] === run.groups.split[group]);
  const at = same.indexOf(group);
  return steps(same[at - 1] !== undefined && run.groupAddress(same[at - 1]), same[at + 1] !== undefined && run.groupAddress(same[at + 1]));
}

function groupRow(run, rows, members, place, reference, keep) {
  const member = members[place], compared = members[reference];
  const fork = member && compared && place !== reference ? parting(member, compared) : null;
  const compare = place === reference
    ? h("span", { class: "chip ref" }, "compared with")
    : link(run.groupAddress(run.episodes.group[rows[place]], { ...keep, ref: place }), { class: "chip", tip: "mark where the others part from this one" }, "compare with");
  const same = member?.steps.length && compared && place !== reference && !fork ? h("span", { class: "chip" }, "the same throughout") : null;
  return memberRow(run, rows[place], member, { fork, extra: h("div", { class: "chips" }, compare, same, gainChip(member)) });
}

// What the update did to an episode, which is not always what its advantage asked for: the others of the batch pull too.
function gainChip(member) {
  const gained = member?.gained ?? null;
  if (gained === null) return null;
  const times = Math.exp(gained);
  return h("span", { class: `chip ${gained < 0 ? "bad" : "good"}`, "data-gained": gained,
    tip: `log-probability of all that was said, after the update minus before it: the policy says it ${times.toPrecision(3)} times as often` }, `log-prob ${signed(gained, 3)}`);
}
