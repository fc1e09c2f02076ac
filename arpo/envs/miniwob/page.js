// Runs before every page script: makes a MiniWoB++ page a function of its seed and of the actions taken.
// Time is virtual and stands still between steps, so a slow model and a fast one see the same screens.
(() => {
  const EPOCH = Date.UTC(2024, 0, 1, 12);
  const START_MS = 400; // the longest set-up delay of a page is 200 ms
  const FLOW_MS = 50; // a step of the clock where time goes on by itself
  const NEVER_MS = 2 ** 31 - 1;
  const STYLE = `
    *, *::before, *::after { transition: none !important; animation: none !important;
      caret-color: transparent !important; caret-animation: manual !important; /* unseen, and not painted twice a second */
      scroll-behavior: auto !important; }
    #reward-display, #click-canvas, #sync-task-cover { display: none !important; }
    html, body { overflow: hidden !important; }`;
  const EDITING_KEYS = new Set(['a', 'c', 'v', 'x', 'z', 'y', 'Home', 'End', 'Backspace', 'Delete', 'Enter',
    'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown']);

  // Scripts lay dialogs out as in MiniWoB++'s own window, which is wider than what the agent sees of it: in a narrow
  // one, jQuery pushes a dialog off the left edge.
  const WINDOW_WIDTH = 500;
  Object.defineProperty(HTMLHtmlElement.prototype, 'clientWidth', { get: () => WINDOW_WIDTH });
  window.innerWidth = WINDOW_WIDTH;

  // The clock.
  let ticks = 0, origin = 0, lastTimer = 0;
  const timers = new Map();
  const now = () => EPOCH + ticks - origin;
  const NativeDate = Date;
  NativeDate.now = now;
  window.Date = new Proxy(NativeDate, {
    construct: (target, args, newTarget) => Reflect.construct(target, args.length ? args : [now()], newTarget),
    apply: () => new NativeDate(now()).toString(),
  });
  performance.now = () => ticks;
  const schedule = (run, delay, every) => {
    const id = ++lastTimer;
    timers.set(id, { id, run, at: ticks + Math.max(1, delay), every });
    return id;
  };
  const callback = (run, args) => (typeof run === 'function' ? () => run(...args) : new Function(String(run)));
  const everyRealInterval = window.setInterval.bind(window);
  window.setTimeout = (run, delay, ...args) => schedule(callback(run, args), Number(delay) || 0, 0);
  window.setInterval = (run, delay, ...args) =>
    schedule(callback(run, args), Number(delay) || 0, Math.max(1, Number(delay) || 0));
  window.requestAnimationFrame = (run) => schedule(() => run(ticks), 16, 0);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = (id) => { timers.delete(id); };

  const nextDue = (end) => {
    let due = null;
    for (const timer of timers.values()) if (timer.at <= end && (due === null || timer.at < due.at)) due = timer;
    return due;
  };
  const advance = (ms) => {
    const end = ticks + ms;
    for (let due = nextDue(end); due !== null; due = nextDue(end)) {
      ticks = Math.max(ticks, due.at);
      timers.delete(due.id);
      if (due.every) timers.set(due.id, { ...due, at: ticks + due.every });
      try { due.run(); } catch (error) { console.error(error); }
    }
    ticks = end;
  };

  // Randomness before the seed is set: a page may draw while it loads.
  let drawn = 1;
  Math.random = () => { drawn = (drawn * 48271) % 2147483647; return drawn / 2147483647; };

  // The page stays where it is: no dialogs, no other pages, no native drag and drop, no browser shortcuts.
  window.alert = () => {};
  window.confirm = () => true;
  window.prompt = () => null;
  window.open = () => null;
  navigation.addEventListener('navigate', (event) => {
    if (event.cancelable && !event.hashChange) event.preventDefault();
  });
  addEventListener('click', (event) => {
    const link = event.target.closest?.('a[target]');
    if (link) link.removeAttribute('target');
  }, true);
  addEventListener('dragstart', (event) => event.preventDefault(), true);
  addEventListener('contextmenu', (event) => event.preventDefault());
  addEventListener('keydown', (event) => {
    const shortcut = (event.ctrlKey || event.altKey || event.metaKey) && !EDITING_KEYS.has(event.key);
    if (shortcut || /^F\d+$/.test(event.key)) event.preventDefault();
  });

  // One clipboard a page: Chromium's is shared by all tabs.
  let clipboard = '';
  const copy = (event) => {
    const field = document.activeElement;
    const text = field && typeof field.selectionStart === 'number'
      ? field.value.slice(field.selectionStart, field.selectionEnd) : String(getSelection());
    if (text) clipboard = text;
    event.preventDefault();
    if (event.type === 'cut') document.execCommand('delete');
  };
  addEventListener('copy', copy);
  addEventListener('cut', copy);
  addEventListener('paste', (event) => {
    event.preventDefault();
    document.execCommand('insertText', false, clipboard);
  });

  // A drop-down opens inside the page: Chromium draws its popup in a window that no screenshot shows.
  let opened = null;
  const closeList = () => {
    if (opened === null) return;
    opened.list.size = 0;
    opened.list.style.cssText = opened.css;
    opened.space.remove();
    opened = null;
  };
  const openList = (list) => {
    const box = list.getBoundingClientRect();
    const space = document.createElement('span');
    space.style.cssText = `display:inline-block;width:${box.width}px;height:${box.height}px`;
    opened = { list, css: list.style.cssText, space };
    list.after(space);
    list.size = Math.max(2, Math.min(8, list.options.length));
    list.style.cssText += `;position:fixed;left:${box.left}px;top:${box.top}px;width:${box.width}px;` +
      'height:auto;max-height:none;margin:0;z-index:99999';
    const bottom = box.top + list.getBoundingClientRect().height;
    if (bottom > innerHeight) list.style.top = `${Math.max(0, box.top - (bottom - innerHeight))}px`;
    list.focus();
  };
  addEventListener('mousedown', (event) => {
    const list = event.target.closest?.('select');
    if (opened !== null && list !== opened.list) closeList();
    if (!list || list.multiple || list.size > 1 || opened !== null) return;
    event.preventDefault();
    openList(list);
  }, true);
  addEventListener('click', (event) => { if (event.target.closest?.('option')) closeList(); }, true);
  addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === 'Escape') closeList(); }, true);

  // Every picture of the style sheets is loaded before the first episode: none appears late in a screenshot.
  const pictures = [];
  const loadPictures = () => {
    for (const sheet of document.styleSheets) {
      for (const rule of sheet.cssRules) {
        for (const [, url] of rule.cssText.matchAll(/url\("?([^")]+)"?\)/g)) {
          const picture = new Image();
          picture.src = new URL(url, sheet.href || document.baseURI).href;
          pictures.push(picture);
        }
      }
    }
  };
  const settled = () => Promise.all([...document.images, ...pictures].filter((image) => !image.complete)
    .map((image) => image.decode().catch(() => null)));

  document.addEventListener('DOMContentLoaded', () => {
    loadPictures();
    const style = document.createElement('style');
    style.textContent = STYLE;
    document.head.append(style);
  });

  const state = () => [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL];
  window.arpo = {
    async start(seed) {
      await settled();
      if (window.jQuery) jQuery.fx.off = true;
      advance(START_MS); // what the page put off while it loaded
      core.EPISODE_MAX_TIME = NEVER_MS;
      closeList();
      clipboard = '';
      if (document.activeElement) document.activeElement.blur();
      for (const element of document.querySelectorAll('#area, #area *')) {
        if (element.scrollTop || element.scrollLeft) element.scrollTop = element.scrollLeft = 0;
      }
      origin = ticks;
      Math.seedrandom(String(seed));
      core.startEpisodeReal();
      clearInterval(core.CD_TIMER);
      advance(START_MS);
      scrollTo(0, 0); // focus may have moved a page that is taller than its window
      await settled();
      const utterance = core.getUtterance();
      return utterance.utterance ?? utterance;
    },
    async advance(ms) {
      if (!WOB_DONE_GLOBAL) advance(ms);
      scrollTo(0, 0); // focus may have moved a page that is taller than its window
      await settled();
      return state();
    },
    flow() { everyRealInterval(() => { if (!WOB_DONE_GLOBAL) advance(FLOW_MS); }, FLOW_MS); },
  };
})();
