// The parts of pages: pictures with actions on them, film strips, tables of colours, small charts.
"use strict";

// --- a screenshot with its action ----------------------------------------------------------------------------------

// Marks are drawn in pixels of the screen; strokes are as wide as the picture asks for.
function overlay(mark, width, height, large) {
  if (!mark.length || !(width > 0) || !(height > 0)) return null;
  const unit = Math.max(width, height) / (large ? 420 : 230);
  const radius = 13 * unit;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "overlay", preserveAspectRatio: "none" });
  const stroke = (make) => {
    for (const kind of ["halo", "ink"]) {
      const shape = make();
      shape.setAttribute("class", kind);
      shape.setAttribute("stroke-width", kind === "halo" ? 6.5 * unit : 3 * unit);
      drawn.append(shape);
    }
  };
  const ring = (x, y, size) => stroke(() => svg("circle", { cx: x, cy: y, r: size * radius }));
  const line = (...points) => stroke(() => svg("polyline", { points: points.map((at) => at.join(",")).join(" ") }));
  const word = (text, x, y) => {
    const right = x > width * 0.6;
    const place = { x: x + (right ? -1.4 : 1.4) * radius, y: Math.max(y - 1.2 * radius, 15 * unit), "font-size": 15 * unit };
    drawn.append(svg("text", { ...place, "text-anchor": right ? "end" : "start", "stroke-width": 4 * unit }, text));
  };
  const arrow = (x, y, toX, toY) => {
    const length = Math.hypot(toX - x, toY - y) || 1;
    const [ux, uy] = [(toX - x) / length, (toY - y) / length];
    const head = 1.2 * radius;
    line([x, y], [toX, toY]);
    line([toX - head * (ux - 0.5 * uy), toY - head * (uy + 0.5 * ux)], [toX, toY],
      [toX - head * (ux + 0.5 * uy), toY - head * (uy - 0.5 * ux)]);
  };
  const [kind, x, y] = mark;
  if (["click", "double", "right", "middle"].includes(kind)) {
    ring(x, y, 1);
    if (kind === "double") ring(x, y, 1.5);
    line([x - 0.7 * radius, y], [x + 0.7 * radius, y]);
    line([x, y - 0.7 * radius], [x, y + 0.7 * radius]);
    if (kind === "right" || kind === "middle") word(kind, x, y);
  } else if (kind === "hover") {
    ring(x, y, 1);
    word("hover", x, y);
  } else if (kind === "drag") {
    ring(x, y, 0.6);
    arrow(x, y, mark[3], mark[4]);
  } else if (kind === "scroll") {
    const [atX, atY] = x === null ? [width / 2, height / 2] : [x, y];
    const [dx, dy] = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] }[mark[3]] || [0, 0];
    arrow(atX - 2.5 * dx * radius, atY - 2.5 * dy * radius, atX + 2.5 * dx * radius, atY + 2.5 * dy * radius);
    word("scroll", atX, atY);
  }
  return drawn;
}

// A screenshot in a box of its shape.
function screenshot(member, key, { width, height }, large = false) {
  const [uri, thumbnail] = member.picture(key);
  const missing = () => h("div", { class: "missing" }, "screenshot missing");
  const box = h("div", { class: "picture", css: { "aspect-ratio": width > 0 && height > 0 ? `${width} / ${height}` : "4 / 3" } });
  const original = `${screensOf(member.run)}/${key.slice(0, 2)}/${key}.png`;
  const sources = [...(large && thumbnail ? [original] : []), ...(uri ? [uri] : [])];
  if (sources.length) {
    const image = h("img", { alt: "", draggable: "false", decoding: "async" });
    if (large && !thumbnail && width < 400) image.classList.add("small");
    image.addEventListener("error", () => {
      if (sources.length) image.src = sources.shift();
      else image.replaceWith(missing());
    });
    image.src = sources.shift();
    box.append(image);
  } else box.append(missing());
  return box;
}

// The screenshot of a step with its action; `step` may be one more than the last: the screen after the last action.
function picture(member, step, { large = false } = {}) {
  const last = step >= member.steps.length;
  const key = last ? String(member.record.last_screenshot || "") : member.steps[step].screenshot;
  const like = member.steps[Math.min(step, member.steps.length - 1)] || { width: 4, height: 3 };
  const mark = last ? [] : member.marks[step] || [];
  const box = screenshot(member, key, like, large);
  if (mark[0] === "error") box.classList.add("wrong");
  const drawn = overlay(mark, like.width, like.height, large);
  if (drawn) box.append(drawn);
  if (mark[0] === "text" || mark[0] === "error") box.append(h("div", { class: "label" }, said(mark[0] === "text" ? briefly(mark, mark[1]) : mark[1])));
  return box;
}

const screensOf = (run) => (location.protocol === "file:" ? run.index.screens : `screens/${run.letter}`);

// What was done in a step, in few words.
function deed(member, step) {
  if (step >= member.steps.length) return said(member.record.outcome, { class: "quiet" });
  const { action, parse_error: error } = member.steps[step];
  if (error) return h("span", { class: "bad" }, "parse error: ", said(error));
  return action ? said(briefly(member.marks[step] || [], action)) : h("span", { class: "quiet" }, "no action");
}

// `click 16, 98` for click(start_box='(16,98)'), `mousepad.open(path='a')` for call(function='mousepad.open', path='a').
function briefly(mark, action) {
  const [kind, x, y] = mark;
  const at = (...values) => values.map((value) => Math.round(value)).join(", ");
  if (["click", "double", "right", "middle", "hover"].includes(kind)) return `${{ double: "double click", right: "right click", middle: "middle click" }[kind] || kind} ${at(x, y)}`;
  if (kind === "drag") return `drag ${at(x, y)} → ${at(mark[3], mark[4])}`;
  if (kind === "scroll") return `scroll ${mark[3]}`;
  const called = /^call\(function='([^'\n]*)'(?:, ([^\n]*))?\)$/.exec(action);
  if (called) return `${called[1]}(${called[2] || ""})`;
  const written = /^(type|hotkey|press|finished)\((?:content|key)='([\s\S]*)'\)$/.exec(action);
  return written ? `${written[1]} “${written[2]}”` : action.replace(/\(\)$/, "");
}

// --- an episode as a film strip ------------------------------------------------------------------------------------

function strip(member, { fork = null, query = {}, most = 60 } = {}) {
  const frames = [];
  const count = Math.min(member.steps.length, most) + (member.record.last_screenshot ? 1 : 0);
  for (let at = 0; at < count; at++) {
    const step = at < Math.min(member.steps.length, most) ? at : member.steps.length;
    const parts = fork && fork.step === step;
    const ending = step >= member.steps.length;
    const to = member.run.episodeAddress(member.row, Math.min(step + 1, member.steps.length), query);
    frames.push(
      link(to, { class: `frame${parts ? " fork" : ""}${fork && step >= fork.step ? " apart" : ""}${ending ? " end" : ""}` },
        picture(member, step),
        parts ? h("span", { class: "forked" }, fork.why) : null,
        h("span", { class: "deed" }, h("b", {}, ending ? "end" : step + 1), " ", deed(member, step))),
    );
  }
  return h("div", { class: "strip" }, frames, member.steps.length > most ? h("span", { class: "quiet" }, `${member.steps.length} steps`) : null);
}

// A place that is filled once it comes into sight.
function later(make, properties) {
  const box = h("div", { class: "later", ...properties });
  const watch = new IntersectionObserver(async (entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watch.disconnect();
    try {
      box.replaceChildren(await make());
    } catch (error) {
      box.replaceChildren(broken(error.message));
    }
    box.classList.remove("later");
  }, { rootMargin: "600px" });
  watch.observe(box);
  return box;
}

const broken = (why) => h("div", { class: "broken" }, h("b", {}, "Broken record. "), said(why));

// --- what an episode was worth -------------------------------------------------------------------------------------

function chips(run, row) {
  const { episodes, groups } = run;
  const group = episodes.group[row];
  const reward = episodes.taskReward[row];
  const version = groups.version[group];
  const chip = (kind, text, tip) => h("span", { class: `chip ${kind}`, tip }, text);
  return [
    chip(run.success(row) ? "good" : "bad", `reward ${number(reward)}${episodes.formatReward[row] ? ` · format ${number(episodes.formatReward[row])}` : ""}`,
      `task reward ${number(reward)}, format reward ${number(episodes.formatReward[row])}`),
    chip("", said(run.outcome(row)), "how the episode ended"),
    run.is(row, INJECTED) ? chip("replayed", "replayed", `put in by replay; it is episode ${episodes.id[row]}`) : null,
    run.is(row, LEFT_OUT) ? chip("left", "left out", "collected, but the update did not learn from it: it made room for a replay, or was too old") : null,
    run.is(row, PARSE_ERROR) ? chip("bad", "parse error", "a response was no action") : null,
    version !== null && !run.is(row, LEFT_OUT)
      ? chip("", `v${episodes.oldest[row]} · lag ${version - episodes.oldest[row]}`,
        `played by policy version ${episodes.oldest[row]}${episodes.newest[row] !== episodes.oldest[row] ? ` to ${episodes.newest[row]}` : ""}, learned from by version ${version}`)
      : chip("", `v${episodes.oldest[row]}`, "the policy version that played it"),
  ];
}

// A bar that grows to the right for what is reinforced, to the left for what is discouraged.
function advantageBar(run, row, most) {
  const value = run.episodes.advantage[row];
  if (value === null && !run.training(run.episodes.group[row])) return null;
  if (value === null) return h("span", { class: "quiet" }, run.is(row, LEFT_OUT) ? "not learned from" : "advantage not recorded");
  const share = most > 0 ? (50 * Math.abs(value)) / most : 0;
  const bar = h("span", { class: `bar ${value < 0 ? "down" : "up"}` }, h("i", { css: { width: `${share}%` } }));
  return h("span", { class: "advantage", tip: `advantage ${value}` }, bar, h("b", {}, signed(value, 3)));
}

// --- tables of colours ---------------------------------------------------------------------------------------------

// cells: function (task, column) -> {share, to, tip, marks} or null.
function heat(tasks, columns, { cell, rowTo, columnTo, columnName = (column) => column, kind = "rate" }) {
  const narrow = columns.length > 24;
  const grid = h("div", { class: `heat ${kind}${narrow ? " narrow" : ""}`, css: { "--columns": columns.length } });
  const every = columns.length <= 12 ? 1 : columns.length <= 60 ? 5 : 10 ** Math.floor(Math.log10(columns.length / 3));
  columns.forEach((column, at) => {
    if (at % every) return;
    grid.append(link(columnTo(column), { class: "column", css: { "grid-column": `${at + 2}` } }, said(columnName(column))));
  });
  tasks.forEach((task, down) => {
    const line = String(down + 2);
    grid.append(link(rowTo(task), { class: "row", css: { "grid-row": line } }, said(task)));
    columns.forEach((column, at) => {
      const found = cell(task, column);
      if (!found) return;
      const css = { "grid-row": line, "grid-column": `${at + 2}`, "--share": `${Math.round(100 * found.share)}%` };
      grid.append(link(found.to, { class: `cell ${found.marks || ""}`, css, tip: found.tip, "aria-label": found.tip }));
    });
  });
  return h("div", { class: "wide" }, grid);
}

// --- small charts --------------------------------------------------------------------------------------------------

// series: [{name, points: [[x, y], …], kind}]
function chart(title, series, { low = null, high = null, format = number } = {}) {
  const known = series.filter((each) => each.points && each.points.length);
  if (!known.length) return null;
  const every = known.flatMap((each) => each.points);
  const xs = every.map(([x]) => x), ys = every.map(([, y]) => y);
  const least = (values) => values.reduce((a, b) => Math.min(a, b)), most = (values) => values.reduce((a, b) => Math.max(a, b));
  const [left, right] = [least(xs), most(xs)], [bottom, top] = [low ?? least(ys), high ?? most(ys)];
  const [W, H] = [300, 90];
  const x = (value) => (right > left ? ((value - left) / (right - left)) * W : W / 2);
  const y = (value) => H - 2 - (top > bottom ? ((value - bottom) / (top - bottom)) * (H - 4) : low === null ? H / 2 : 0);
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none" });
  known.forEach(({ points, kind = "" }, at) => {
    const path = points.map(([px, py]) => `${x(px).toFixed(1)},${y(py).toFixed(1)}`).join(" ");
    drawing.append(svg("polyline", { points: path, class: `line s${at} ${kind}` }));
  });
  const legend = known.map(({ name, points }, at) =>
    h("span", { class: `key s${at}` }, h("i"), name, " ", h("b", {}, format(points[points.length - 1][1]))));
  return h("figure", { class: "chart" }, h("figcaption", {}, title, low === null || high === null ? h("small", {}, `${format(bottom)} to ${format(top)}`) : null), drawing,
    h("div", { class: "axis" }, h("span", {}, left), h("span", {}, right)), h("div", { class: "keys" }, legend));
}
