// A run as its index tells it: groups and episodes by number, and what is counted of them.
"use strict";

const INJECTED = 1, LEFT_OUT = 2, PARSE_ERROR = 4;

class Run {
  constructor(letter, index) {
    this.letter = letter;
    this.index = index;
    this.groups = index.groups;
    this.episodes = index.episodes;
    this.first = []; // of each group, the number of its first episode; one more entry for the end
    const { group } = this.episodes;
    for (let row = 0; row < group.length; row++) if (this.first[group[row]] === undefined) this.first[group[row]] = row;
    this.first.push(group.length);
    this.byKey = new Map(this.groups.key.map((key, number) => [key, number]));
  }

  rows(group) {
    const start = this.first[group];
    return Array.from({ length: this.first[group + 1] - start }, (_, offset) => start + offset);
  }

  // Those that were played for the group: neither put in by replay nor of another one.
  played(group) {
    return this.rows(group).filter((row) => !this.is(row, INJECTED));
  }

  is(row, flag) { return (this.episodes.flags[row] & flag) !== 0; }
  success(row) { return this.episodes.taskReward[row] > this.index.threshold; }
  outcome(row) { return this.index.outcomes[this.episodes.outcome[row]]; }
  task(row) { return this.index.tasks[this.episodes.task[row]][0]; }
  domain(row) { return this.index.tasks[this.episodes.task[row]][1]; }
  instruction(row) { return this.index.tasks[this.episodes.task[row]][2]; }
  taskOfGroup(group) { return this.index.tasks[this.groups.task[group]][0]; }
  nameOf(group, rows) { return this.index.tasks[this.groups.task[group]][rows === "domain" ? 1 : 0]; }
  position(row) { return row - this.first[this.episodes.group[row]]; }
  training(group) { return this.groups.split[group] === "train"; }

  // The column of a group in a table: `12` in training, `eval-12/held_out` in an evaluation.
  column(group) {
    const key = this.groups.key[group];
    return key.includes("/") ? key.slice(0, key.lastIndexOf("/")) : key;
  }

  chunk(group) { return Data.load(`${this.letter}/g/${this.groups.file[group]}`, this.groups.file[group]); }

  iterationAddress(column, query) { return address([this.letter, "iteration", column], query); }
  groupAddress(group, query) { return address([this.letter, "group", this.groups.key[group]], query); }
  episodeAddress(row, step = 1, query = {}) {
    const group = this.episodes.group[row];
    return address([this.letter, "episode", this.groups.key[group], this.position(row), step], query);
  }

  rate(groups) {
    let succeeded = 0, count = 0;
    for (const group of groups) for (const row of this.played(group)) { count++; succeeded += this.success(row); }
    return { succeeded, count, share: count ? succeeded / count : null };
  }

  // The rows and columns of a table: Map task or domain -> Map column -> group numbers.
  table(groups, rows = "task") {
    const cells = new Map(), columns = new Set();
    for (const group of groups) {
      const name = this.nameOf(group, rows), column = this.column(group);
      columns.add(column);
      if (!cells.has(name)) cells.set(name, new Map());
      const row = cells.get(name);
      row.set(column, [...(row.get(column) || []), group]);
    }
    return { cells, columns: [...columns].sort(natural) };
  }

  all() { return this.groups.key.map((_, group) => group); }
}

// What the rows of a table are. A page of the web with hundreds of seeds is hundreds of tasks, of which most come once:
// they would be a table of empty rows.
const MOST_TASKS = 128;

function rowsFor(run, groups, asked) {
  if (asked === "task" || asked === "domain") return asked;
  const [{ cells, columns }, domains] = [run.table(groups), run.table(groups, "domain").cells.size];
  const filled = [...cells.values()].reduce((sum, row) => sum + row.size, 0);
  const comeOnce = columns.length > 1 && filled < 2 * cells.size;
  return domains < cells.size && (cells.size > MOST_TASKS || comeOnce) ? "domain" : "task";
}

// One member of a group, with its record read.
class Member {
  constructor(run, row, chunk, stored) {
    this.run = run;
    this.row = row;
    this.raw = stored.raw;
    this.marks = stored.marks;
    this.file = stored.file;
    this.record = JSON.parse(stored.raw);
    if (this.record.id !== run.episodes.id[row]) throw new Error("the index is older than the group");
    this.pictures = chunk.shown;
    this.words = chunk.vocabulary;
    this.numbers = new Map(stored.numbers.map(([name, packed]) => [name, floats(packed)]));
    this.steps = this.record.steps;
    this.exchanges = this.record.exchanges;
  }

  // The exchange whose response a step is; a script has none.
  exchange(step) { return this.exchanges[this.steps[step].exchange] || { parent: null, added_ids: [], response_ids: [], sampler_logprobs: [] }; }

  // The exchanges of the conversation that a step ends, as far as they are known.
  path(step) {
    const found = [];
    for (let at = this.exchange(step); at; at = this.exchanges[at.parent]) found.unshift(at);
    return found;
  }

  picture(key) { return this.pictures.get(key) || ["", false]; }
  text(ids) { return ids.map((id) => this.word(id)).join(""); }
  word(id) { return this.words.has(id) ? this.words.get(id) : `⟨${id}⟩`; }

  // The number of the first token of a step among those of the episode that may be learned from.
  offset(step) {
    return this.exchanges.slice(0, this.steps[step].exchange).reduce((sum, each) => sum + (each.trained ? each.delivered ?? each.response_ids.length : 0), 0);
  }

  value(name, step, token) {
    const { response_ids: ids, sampler_logprobs: logprobs, trained, delivered } = this.exchange(step);
    if (name === "sampler") return logprobs[token];
    if (!trained || token >= (delivered ?? ids.length)) return NaN;
    const at = this.offset(step) + token;
    const value = (from) => (this.numbers.has(from) ? this.numbers.get(from)[at] : NaN);
    if (name === "ratio") return Math.exp(value("logprobs") - value("old_logprobs"));
    if (name === "after_ratio") return Math.exp(value("after_logprobs") - value("old_logprobs"));
    return value(name);
  }

  // By how much the update raised the log-probability of all that was said; null where nobody asked after it.
  get gained() {
    if (!this.knows("after_ratio")) return null;
    const before = this.numbers.get("old_logprobs");  // of the responses that are learned from, be they steps or not
    const changes = this.numbers.get("after_logprobs").map((after, at) => after - before[at]);
    return changes.filter(Number.isFinite).reduce((sum, change) => sum + change, 0);
  }

  knows(name) {
    if (name === "sampler") return true;
    const needs = { ratio: ["logprobs", "old_logprobs"], after_ratio: ["after_logprobs", "old_logprobs"] }[name] || [name];
    return needs.every((need) => this.numbers.has(need));
  }
}

// The members of a group; what cannot be read is null in its place.
async function membersOf(run, group) {
  const chunk = await run.chunk(group);
  if (!chunk.shown) {
    chunk.shown = new Map(chunk.pictures.map(([key, uri, thumbnail]) => [key, [uri, thumbnail]]));
    chunk.vocabulary = new Map(chunk.words);
  }
  return run.rows(group).map((row, position) => {
    try {
      return new Member(run, row, chunk, chunk.members[position]);
    } catch (error) {
      return null;
    }
  });
}

function floats(packed) {
  const letters = atob(packed);
  const bytes = new Uint8Array(letters.length);
  for (let index = 0; index < letters.length; index++) bytes[index] = letters.charCodeAt(index);
  return new Float32Array(bytes.buffer);
}

// The step at which an episode parts from another one, and why: its first other screen or other action.
function parting(member, reference) {
  const most = Math.max(member.steps.length, reference.steps.length);
  for (let step = 0; step < most; step++) {
    const one = member.steps[step], other = reference.steps[step];
    if (!one || !other) return { step: Math.min(step, member.steps.length), why: one ? "goes on" : "ends earlier" };
    if (one.screenshot !== other.screenshot) return { step, why: "sees another screen" };
    if (one.action !== other.action || one.parse_error !== other.parse_error) return { step, why: "acts differently" };
  }
  return null;
}
