// The way from an address to a page, and the look for news where the run is live.
"use strict";

const KEYS = new Map(); // of the page that is shown: key -> what it does

const START = (() => {
  const LOOK_EVERY_MS = 4000;
  let site = null, runs = [], shown = 0, last = "";
  const places = new Map(); // address -> how far it was scrolled

  async function open(found) {
    const opened = await Promise.all(found.runs.map(async (letter) => new Run(letter, await Data.look(`${letter}/index`))));
    [site, runs] = [found, opened];
  }

  function route() {
    const { parts, query } = readAddress();
    if (parts[0] === "pair" && runs.length === 2) {
      const group = parts[1] === "group";
      return { page: PAGES[group ? "pair/group" : "pair"], of: runs, parts: parts.slice(group ? 2 : 1), query, tab: "pair" };
    }
    const run = runs.find((each) => each.letter === parts[0]) || runs[0];
    const name = Object.hasOwn(PAGES, parts[1] || "") && !["run", "pair"].includes(parts[1]) ? parts[1] : "run";
    return { page: PAGES[name], of: run, parts: parts.slice(2), query, tab: `${run.letter}/${name === "episodes" ? "episodes" : "run"}` };
  }

  async function show() {
    const own = ++shown;
    if (last) places.set(last, window.scrollY);
    const { page, of, parts, query, tab } = route();
    Tip.hide();
    KEYS.clear();
    let made;
    try {
      made = await page(of, parts, query);
    } catch (error) {
      made = h("article", {}, h("h1", {}, "This page cannot be shown"), broken(error.message));
    }
    if (own !== shown) return;
    document.getElementById("page").replaceChildren(made);
    document.getElementById("bar").replaceChildren(...bar(tab).filter(Boolean));
    const same = pageOf(last) === pageOf(location.hash);
    last = location.hash;
    if (!same) window.scrollTo(0, places.get(last) || 0);
    document.title = `${[...document.querySelectorAll("h1")].map((node) => node.textContent).join("")} · ARPO`;
    document.documentElement.dataset.ready = location.hash;
  }

  // Steps of one episode are one page: what is looked at stays where it is.
  const pageOf = (hash) => (hash.includes("/episode/") ? hash.split("/").slice(0, 5).join("/") : hash);

  function bar(tab) {
    const item = (to, name, text) => link(to, { class: tab === name ? "chosen" : "" }, text);
    const two = runs.length === 2;
    return [
      link(address([runs[0].letter]), { class: "brand" }, "ARPO"),
      h("nav", {}, runs.map((run, at) => [
        two ? h("b", { class: "letter" }, "AB"[at]) : null,
        item(address([run.letter]), `${run.letter}/run`, "Run"), item(address([run.letter, "episodes"]), `${run.letter}/episodes`, "Episodes"),
      ]), two ? item(address(["pair"]), "pair", "Two runs") : null),
      h("span", { class: "grow" }), site.live ? h("span", { class: "live", tip: "the page follows the run" }, "live") : null,
      h("button", { type: "button", id: "theme", tip: "light or dark", on: { click: turn } }, "◐"),
    ];
  }

  function turn() {
    const dark = getComputedStyle(document.documentElement).colorScheme.startsWith("dark");
    choose(dark ? "light" : "dark");
    try { localStorage.setItem("arpo-theme", dark ? "light" : "dark"); } catch (error) { /* not every browser keeps it for files */ }
  }

  function choose(theme) {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  }

  // Names the state of what a page of one group shows; nothing on other pages.
  function subject() {
    const { page, of, parts } = route();
    return [PAGES.group, PAGES.episode].includes(page) ? of.groups.file[of.byKey.get(parts[0])] : null;
  }

  async function look() {
    const news = await Data.look("site").catch(() => null);
    if (!news || news.serial === site.serial) return;
    const before = subject();
    await open(news);
    if (before && before === subject()) return; // what somebody reads stays as it is
    if (!["INPUT", "SELECT"].includes(document.activeElement?.tagName)) {
      const at = window.scrollY;
      await show();
      window.scrollTo(0, at);
    }
  }

  function key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    const act = KEYS.get(event.key);
    if (act) {
      event.preventDefault();
      act();
    }
  }

  async function start() {
    try { choose(localStorage.getItem("arpo-theme")); } catch (error) { /* as above */ }
    history.scrollRestoration = "manual";
    await open(await Data.look("site"));
    window.addEventListener("hashchange", show);
    document.addEventListener("keydown", key);
    await show();
    document.documentElement.dataset.opened = String(Math.round(performance.now()));
    if (site.live) setInterval(look, LOOK_EVERY_MS);
  }

  start().catch((error) => document.getElementById("page").replaceChildren(broken(error.message)));
  return { serial: () => site.serial, remember: () => { last = location.hash; } };
})();
