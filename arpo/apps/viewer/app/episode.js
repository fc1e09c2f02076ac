// The page of an episode: one step at a time, and every token of it in the colour of a number.
"use strict";

const MEASURES = {
  sampler: { name: "log-prob sampled", scale: "logprob", about: "the engine's log-probability when it sampled the token" },
  old_logprobs: { name: "log-prob before", scale: "logprob", about: "the trainer's log-probability before the update" },
  logprobs: { name: "log-prob in", scale: "logprob", about: "the trainer's log-probability in the last forward that the token was learned from" },
  after_logprobs: { name: "log-prob after", scale: "logprob", about: "the log-probability after the update" },
  ratio: { name: "ratio in", scale: "ratio", about: "probability in the update over probability before it: what clipping saw" },
  after_ratio: { name: "ratio after", scale: "ratio", about: "probability after the update over probability before it" },
  old_entropy: { name: "entropy before", scale: "entropy", about: "entropy of the token's distribution before the update, in nats" },
  entropy: { name: "entropy in", scale: "entropy", about: "the same in the last forward that the token was learned from" },
  after_entropy: { name: "entropy after", scale: "entropy", about: "the same after the update" },
  weights: { name: "weight", scale: "ratio", about: "factor of the token's policy term: off-policy correction and selection of steps" },
};

PAGES.episode = async (run, [key, place, at], query) => {
  const group = run.byKey.get(key);
  const row = group === undefined ? undefined : run.rows(group)[Number(place)];
  if (row === undefined) return missingPage("There is no such episode in this run.");
  const member = (await membersOf(run, group))[Number(place)];
  const crumbs = h("p", { class: "crumbs" }, link(address([run.letter]), {}, said(run.index.name)), " › ",
    link(run.iterationAddress(run.column(group)), {}, run.training(group) ? "iteration " : "", said(run.column(group))), " › ", link(run.groupAddress(group), {}, said(run.taskOfGroup(group))));
  if (!member) return h("article", {}, crumbs, broken("it changed while the viewer was written, or cannot be read"));
  const count = member.steps.length;
  const step = Math.min(Math.max(1, Number(at) || 1), Math.max(1, count)) - 1;
  const asked = query.get("by") || "";
  const by = Object.hasOwn(MEASURES, asked) && member.knows(asked) ? asked : ["after_ratio", "ratio", "sampler"].find((name) => member.knows(name));
  const keep = { by: query.get("by") || "" };
  const go = (to) => run.episodeAddress(row, to + 1, keep);
  episodeKeys(run, row, step, count, go, keep);
  return h("article", { class: "episode" }, crumbs,
    h("div", { class: "head" }, h("h1", {}, said(member.record.instruction || run.task(row)), h("small", {}, " ", said(run.episodes.id[row]))),
      h("nav", { class: "steps" }, arrow(step > 0 && go(step - 1), "‹"), h("span", { id: "at" }, count ? `step ${step + 1} of ${count}` : "no steps"), arrow(step + 1 < count && go(step + 1), "›"))),
    h("div", { class: "chips" }, chips(run, row), advantageBar(run, row, run.rows(group).reduce((most, each) => Math.max(most, Math.abs(run.episodes.advantage[each] ?? 0)), 0))),
    count ? h("div", { class: "stage" },
      h("div", { class: "screen" }, picture(member, step, { large: true }), filmOf(member, step, go)),
      h("div", { class: "answer" }, answer(member, step), tokens(run, row, member, step, by), prompt(member, step), raw(member)))
      : raw(member),
    tree(member, step, go));
};

const arrow = (to, sign) => (to ? link(to, {}, sign) : h("span", { class: "quiet" }, sign));

function episodeKeys(run, row, step, count, go, keep) {
  const group = run.episodes.group[row], rows = run.rows(group), place = run.position(row);
  const to = (where) => () => location.replace(where); // the way back leads past the steps, to where one came from
  if (step + 1 < count) KEYS.set("ArrowRight", to(go(step + 1)));
  if (step > 0) KEYS.set("ArrowLeft", to(go(step - 1)));
  if (rows[place - 1] !== undefined) KEYS.set("ArrowUp", to(run.episodeAddress(rows[place - 1], step + 1, keep)));
  if (rows[place + 1] !== undefined) KEYS.set("ArrowDown", to(run.episodeAddress(rows[place + 1], step + 1, keep)));
  KEYS.set("Escape", () => { location.hash = run.groupAddress(group); });
}

function filmOf(member, step, go) {
  const count = member.steps.length;
  const frame = (at) => link(go(Math.min(at, count - 1)), { class: `frame${at === step ? " chosen" : ""}` }, picture(member, at), h("span", { class: "deed" }, h("b", {}, at < count ? at + 1 : "end")));
  const places = Array.from({ length: count + (member.record.last_screenshot ? 1 : 0) }, (_, at) => at);
  return h("div", { class: "strip film" }, places.map(frame), h("p", { class: "quiet keys" }, "← → steps, ↑ ↓ episodes of the group, Esc the group"));
}

// --- what was said -------------------------------------------------------------------------------------------------

function answer(member, step) {
  const { response, action, parse_error: error, patch } = member.steps[step];
  const found = /^\s*(?:Thought:)?([\s\S]*?)\s*Action:/.exec(response);
  const thought = found ? found[1].trim() : "";
  return h("div", { class: "said" },
    thought ? [h("h2", {}, "Thought"), h("p", { class: "thought" }, said(thought))] : null,
    h("h2", {}, "Action"),
    error ? h("p", { class: "broken" }, h("b", {}, "parse error: "), said(error)) : h("p", { class: "action" }, action ? said(action) : h("span", { class: "quiet" }, "none")),
    h("details", { open: Boolean(error) || !found }, h("summary", {}, "Response as it was written"), h("pre", {}, said(response))),
    patch ? [h("h2", {}, "An expert's answer, read later in its place"), h("pre", { class: "patch" }, said(patch))] : null);
}

// --- tokens --------------------------------------------------------------------------------------------------------

function tokens(run, row, member, step, by) {
  const ids = member.exchange(step).response_ids;
  const values = ids.map((_, at) => member.value(by, step, at));
  const { scale } = MEASURES[by];
  const { shade, ends } = SCALES[scale](member, by);
  const panel = h("div", { class: "numbers", id: "numbers" }, h("p", { class: "quiet" }, "Point at a token for its numbers."));
  let pinned = null;
  const tell = (at) => panel.replaceChildren(numbersOf(member, step, at));
  const marks = ids.map((id, at) => {
    const value = values[at];
    const [side, strength] = Number.isFinite(value) ? shade(value) : ["none", 0];
    const text = member.word(id);
    const token = h("span", { class: `token ${scale} ${side}`, css: { "--strength": `${Math.round(100 * Math.min(1, strength))}%` }, tabindex: "0", "data-at": at,
      on: {
        pointerenter: () => pinned === null && tell(at),
        focus: () => tell(at),
        click: () => { pinned = pinned === at ? null : at; tell(at); },
      } }, visible(text));
    return text.includes("\n") ? [token, h("br")] : token;
  });
  const choice = h("nav", { class: "choice", id: "measures" }, Object.keys(MEASURES).filter((name) => member.knows(name)).map((name) =>
    link(run.episodeAddress(row, step + 1, { by: name }), { class: name === by ? "chosen" : "", tip: MEASURES[name].about }, MEASURES[name].name)));
  return h("section", { class: "tokens" }, h("h2", {}, "Tokens"), choice,
    h("div", { class: `ramp ${scale}` }, h("span", {}, ends[0]), h("i"), h("span", {}, ends[1])),
    h("p", { class: "text", dir: "ltr" }, marks), panel, notLearned(run, row, member));
}

function notLearned(run, row, member) {
  if (member.numbers.size || !run.training(run.episodes.group[row])) return null;
  const known = run.groups.update[run.episodes.group[row]] !== null;
  const why = !known ? "The run has no record of what its update did (callbacks.update_log): only the engine's numbers are known."
    : run.is(row, LEFT_OUT) ? "The update left this episode out." : "Its advantage is 0, so the update did not compute it: only the engine's numbers are known.";
  return h("p", { class: "note" }, why);
}

// Strength of a colour, and the numbers at the ends of the ramp. Of a ratio the largest change of the episode is full.
const SCALES = {
  logprob: () => ({ shade: (value) => ["low", Math.sqrt(Math.min(1, -value / 5))], ends: ["0", "≤ −5"] }),
  entropy: () => ({ shade: (value) => ["low", Math.sqrt(Math.min(1, value / 3))], ends: ["0", "≥ 3"] }),
  ratio: (member, by) => {
    let most = 0.001;
    member.steps.forEach((_, step) => member.exchange(step).response_ids.forEach((_id, at) => {
      const change = Math.abs(Math.log(member.value(by, step, at)));
      if (Number.isFinite(change)) most = Math.max(most, change);
    }));
    const edge = Math.exp(most);
    return { shade: (value) => [value < 1 ? "down" : "up", Math.sqrt(Math.abs(Math.log(value)) / most) || 0], ends: [(1 / edge).toFixed(3), edge.toFixed(3)] };
  },
};

function numbersOf(member, step, at) {
  const id = member.exchange(step).response_ids[at];
  const rows = Object.keys(MEASURES).filter((name) => member.knows(name)).map((name) => {
    const value = member.value(name, step, at);
    return h("tr", { "data-name": name }, h("th", {}, MEASURES[name].name), h("td", {}, Number.isFinite(value) ? value.toFixed(7) : "not computed"));
  });
  return h("table", { class: "plain" }, h("caption", {}, `token ${at + 1}: `, h("code", {}, said(visible(member.word(id)))), ` id ${id}`), h("tbody", {}, rows));
}

// White space that can be seen.
const visible = (text) => text.replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";

// --- prompt and record ---------------------------------------------------------------------------------------------

function onDemand(title, make) {
  const box = h("details", {}, h("summary", {}, title));
  box.addEventListener("toggle", () => { if (box.open && box.children.length === 1) box.append(make()); });
  return box;
}

function prompt(member, step) {
  return onDemand("Prompt", () => h("div", {}, member.path(step).map(({ added_ids: ids }, at, path) =>
    h("pre", { class: at + 1 === path.length ? "" : "before" }, said(member.text(ids))))));
}

function raw(member) {
  // JavaScript has rounded the seed; the index has all of its digits.
  const exact = (name, value) => (name === "seed" ? member.run.episodes.seed[member.row] : value);
  return onDemand("Record as it is stored", () => h("div", {}, h("p", { class: "quiet" }, said(member.file)), h("pre", { class: "raw" }, said(JSON.stringify(member.record, exact, 1))), h("details", {}, h("summary", {}, "The line, byte for byte"), h("pre", { class: "raw" }, said(member.raw)))));
}
