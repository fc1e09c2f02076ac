// The list of episodes: filters, search, 64 a page.
"use strict";

const A_PAGE = 64;
const FILTERS = ["split", "task", "domain", "outcome", "result", "replayed", "least", "most", "from", "to", "q", "answers", "page"];

PAGES.episodes = (run, _parts, query) => {
  const state = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) || ""]));
  const list = h("div", { class: "list" });
  let searching = 0;

  function remember() {
    history.replaceState(null, "", address([run.letter, "episodes"], state));
    START.remember();
  }

  async function show() {
    const own = ++searching;
    const rows = matching(run, state);
    if (!state.answers || !state.q) return present(rows, "");
    const found = [];
    const places = placesOf(run, rows);
    for (const [at, [place, wanted]] of places.entries()) {
      present(found, `searching answers, ${at} of ${places.length} iterations …`);
      const said = await textsOf(run, place);
      if (own !== searching) return;
      found.push(...wanted.filter((row) => (said.get(row) || "").toLowerCase().includes(state.q.toLowerCase())));
    }
    present(found, "");
  }

  function present(rows, note) {
    const pages = Math.max(1, Math.ceil(rows.length / A_PAGE));
    const page = Math.min(Math.max(1, Number(state.page) || 1), pages);
    const part = rows.slice((page - 1) * A_PAGE, page * A_PAGE);
    list.replaceChildren(
      h("p", { class: "quiet", id: "count" }, note || `${plural(rows.length, "episode")} of ${run.episodes.id.length.toLocaleString("en")}`,
        rows.length ? `, ${percent(rows.filter((row) => run.success(row)).length / rows.length)} succeeded` : ""),
      pager(page, pages), h("div", { class: "rows small" }, part.map((row) => line(run, row))), part.length > 8 ? pager(page, pages) : "");
  }

  function pager(page, pages) {
    if (pages < 2) return "";
    const go = (to) => h("button", { type: "button", disabled: to < 1 || to > pages, on: { click: () => { state.page = String(to); remember(); show(); window.scrollTo(0, 0); } } }, to < page ? "‹ before" : "next ›");
    return h("nav", { class: "pager" }, go(page - 1), ` page ${page} of ${pages} `, go(page + 1));
  }

  const changed = (name) => (event) => {
    state[name] = event.target.type === "checkbox" ? (event.target.checked ? "1" : "") : event.target.value;
    state.page = "";
    remember();
    show();
  };

  show();
  return h("article", {}, h("h1", {}, "Episodes"), filterForm(run, state, changed), list);
};

function line(run, row) {
  const group = run.episodes.group[row];
  return h("div", { class: "entry" },
    h("h3", {}, link(run.groupAddress(group), {}, said(run.task(row))), " ", h("small", {}, run.groups.key[group], " · ", said(run.instruction(row)))),
    later(async () => {
      const members = await membersOf(run, group);
      return memberRow(run, row, members[run.position(row)]);
    }, { css: { "min-height": "110px" } }));
}

// --- filters -------------------------------------------------------------------------------------------------------

function filterForm(run, state, changed) {
  const choice = (name, label, values, all) => h("label", {}, h("span", {}, label),
    h("select", { name, on: { change: changed(name) } }, [h("option", { value: "" }, all), ...values.map(([value, text]) => h("option", { value, selected: state[name] === value }, text))]));
  const field = (name, label, kind, size) => h("label", {}, h("span", {}, label),
    h("input", { name, type: kind, value: state[name], size, step: "any", on: { input: changed(name) } }));
  const same = (values) => [...new Set(values)].sort(natural).map((value) => [value, value]);
  return h("form", { class: "filters", on: { submit: (event) => event.preventDefault() } },
    choice("split", "played in", same(run.groups.split), "all"),
    choice("task", "task", same(run.index.tasks.map(([task]) => task)), "all tasks"),
    choice("domain", "domain", same(run.index.tasks.map(([, domain]) => domain)), "all domains"),
    choice("outcome", "outcome", same(run.index.outcomes), "any"),
    choice("result", "result", [["success", "success"], ["failure", "failure"]], "any"),
    choice("replayed", "replay", [["yes", "replayed"], ["no", "played"], ["out", "left out"]], "any"),
    h("label", {}, h("span", {}, "reward"), h("span", { class: "range" }, field("least", "", "number").lastChild, " to ", field("most", "", "number").lastChild)),
    h("label", {}, h("span", {}, "iteration"), h("span", { class: "range" }, field("from", "", "number").lastChild, " to ", field("to", "", "number").lastChild)),
    field("q", "text", "search"),
    h("label", { class: "check" }, h("input", { name: "answers", type: "checkbox", checked: Boolean(state.answers), on: { change: changed("answers") } }), h("span", {}, "in answers too")),
    link(address([run.letter, "episodes"]), { class: "reset" }, "clear"));
}

function matching(run, state) {
  const { index, episodes, groups } = run;
  const reward = (row) => episodes.taskReward[row];
  const text = state.q.toLowerCase();
  const bound = (value) => (value === "" || Number.isNaN(Number(value)) ? null : Number(value));
  const [least, most, from, to] = [state.least, state.most, state.from, state.to].map(bound);
  const taskFits = index.tasks.map(([task, domain, instruction]) =>
    (!state.task || task === state.task) && (!state.domain || domain === state.domain) &&
    (!text || state.answers || `${task}\n${instruction}`.toLowerCase().includes(text)));
  const replayFits = { "": () => true, yes: (row) => run.is(row, INJECTED), no: (row) => !run.is(row, INJECTED), out: (row) => run.is(row, LEFT_OUT) }[state.replayed] || (() => true);
  const found = [];
  for (let row = 0; row < episodes.id.length; row++) {
    const group = episodes.group[row];
    const idFits = text && !state.answers && episodes.id[row].toLowerCase() === text;
    if (!taskFits[episodes.task[row]] && !(idFits && !state.task && !state.domain)) continue;
    if (state.split && groups.split[group] !== state.split) continue;
    if (state.outcome && run.outcome(row) !== state.outcome) continue;
    if (state.result && run.success(row) !== (state.result === "success")) continue;
    if ((least !== null && reward(row) < least) || (most !== null && reward(row) > most)) continue;
    if ((from !== null && groups.iteration[group] < from) || (to !== null && groups.iteration[group] > to)) continue;
    if (replayFits(row)) found.push(row);
  }
  return found;
}

// --- search in what was said ---------------------------------------------------------------------------------------

function placesOf(run, rows) {
  const places = new Map();
  for (const row of rows) {
    const group = run.episodes.group[row];
    const place = `${run.groups.split[group]}-${run.groups.iteration[group]}`;
    places.set(place, [...(places.get(place) || []), row]);
  }
  return [...places];
}

// Return Map row -> all that was said in the episode, with its task.
async function textsOf(run, place) {
  const rows = await Data.load(`${run.letter}/t/${place}`, START.serial());
  const found = new Map();
  for (const [key, position, text] of rows) {
    const group = run.byKey.get(key);
    if (group === undefined) continue;
    const row = run.first[group] + position;
    if (row < run.first[group + 1]) found.set(row, `${run.task(row)}\n${run.instruction(row)}\n${text}`);
  }
  return found;
}
