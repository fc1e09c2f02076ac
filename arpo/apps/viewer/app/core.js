// The ground floor of the viewer: data that scripts hand over, elements, addresses. Everything that comes from a record
// goes through `textContent` or `setAttribute` of a harmless attribute, never through HTML.
"use strict";

const Data = (() => {
  const waiting = new Map(); // name -> functions that wait for it
  const kept = new Map(); // address -> promise of the value, the oldest first
  const MOST_KEPT = 160;

  function take(name, value) {
    const waits = waiting.get(name) || [];
    waiting.delete(name);
    for (const resolve of waits) resolve(value);
  }

  // A page on disk may fetch nothing, but it may run a script that lies beside it.
  function run(name, address) {
    return new Promise((resolve, reject) => {
      waiting.set(name, [...(waiting.get(name) || []), resolve]);
      const script = document.createElement("script");
      script.onload = () => script.remove();
      script.onerror = () => {
        script.remove();
        kept.delete(address);
        reject(new Error(`${address} is missing: write the viewer again with python -m arpo view`));
      };
      script.src = address;
      document.head.append(script);
    });
  }

  function load(name, version = "") {
    const address = `data/${name}.js` + (version === "" ? "" : `?v=${version}`);
    if (!kept.has(address)) kept.set(address, run(name, address));
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    return kept.get(address);
  }

  // What may change while the page is open.
  const look = (name) => run(name, `data/${name}.js?t=${Date.now()}`);

  return { take, load, look };
})();

function arpoData(name, value) {
  Data.take(name, value);
}

// --- elements ------------------------------------------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "css") for (const [rule, setting] of Object.entries(value)) node.style.setProperty(rule, setting);
    else if (name === "tip") Tip.of(node, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

// h("p", {class: "quiet"}, "text", node): an element; strings become text.
function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

// Text of a record: it keeps its own direction to itself.
function said(text, properties) {
  return h("bdi", { dir: "auto", ...properties }, String(text));
}

const Tip = (() => {
  const texts = new WeakMap();
  function of(node, text) {
    texts.set(node, text);
    node.classList.add("tipped");
    node.addEventListener("pointerenter", show);
    node.addEventListener("pointerleave", hide);
  }
  function show(event) {
    const box = document.getElementById("tip");
    const text = texts.get(event.currentTarget);
    box.textContent = typeof text === "function" ? text() : text;
    box.hidden = false;
    const place = event.currentTarget.getBoundingClientRect();
    const left = Math.min(place.left, window.innerWidth - box.offsetWidth - 12);
    const above = place.top - box.offsetHeight - 8;
    box.style.setProperty("left", `${Math.max(8, left)}px`);
    box.style.setProperty("top", `${above > 8 ? above : place.bottom + 8}px`);
  }
  function hide() {
    document.getElementById("tip").hidden = true;
  }
  return { of, hide };
})();

// --- numbers and words ---------------------------------------------------------------------------------------------

const percent = (share) => `${(100 * share).toFixed(share === 0 || share === 1 ? 0 : 1)} %`;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return Number.isInteger(value) ? String(value) : value.toFixed(digits);
}

const signed = (value, digits = 2) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(digits);

// Ids sort as people count: 2 before 10.
const natural = new Intl.Collator("en", { numeric: true }).compare;

// --- addresses: #/a/group/12%2F3?ref=2 -------------------------------------------------------------------------------

function address(parts, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
  return "#/" + parts.map((part) => encodeURIComponent(wellFormed(part))).join("/") + (search ? `?${search}` : "");
}

// Half of a surrogate pair has no place in an address.
function wellFormed(part) {
  return String(part).replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd");
}

function readAddress() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  try {
    return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(search || "") };
  } catch (error) {
    return { parts: [], query: new URLSearchParams() }; // not one of ours
  }
}

const link = (to, properties, ...children) => h("a", { href: to, ...properties }, ...children);
