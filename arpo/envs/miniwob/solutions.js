// Scripted solutions, closed loop: each reads the instruction and the page as it is now and names the next right
// action in page pixels, or null where there is nothing left to do. They never touch the page.
(() => {
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility !== 'hidden';
  };
  const hits = (element, [x, y]) => element.contains(document.elementFromPoint(x, y));
  // The middle of an element, or of the part of it that nothing covers.
  const SHARES = [0.5, 0.25, 0.75, 0.1, 0.9];
  const middle = (element) => {
    const box = element.getBoundingClientRect();
    const points = SHARES.flatMap((down) => SHARES.map((across) => [box.x + box.width * across, box.y + box.height * down]));
    return points.find((point) => hits(element, point.map(Math.round))) || points[0];
  };
  const click = (element) => ['click', ...middle(element)];
  const utterance = () => {
    const said = core.getUtterance();
    return said.utterance || said;
  };
  const asked = (pattern) => utterance().match(pattern)[1];
  const quoted = () => [...utterance().matchAll(/"(.*?)"/g)].map((found) => found[1]);
  const named = (selector, text) => all(selector).find((e) => visible(e) && e.textContent.trim() === text);
  const submit = () => click(one('#subbtn, #submit, #area button.secondary-action'));

  // Click into a field, clear what is wrong, type, then go on.
  const fill = (field, text, next) => {
    if (field.value === text) return next();
    if (document.activeElement !== field) return click(field);
    if (field.value === '') return ['type', text];
    const all_selected = field.selectionStart === 0 && field.selectionEnd === field.value.length;
    return all_selected ? ['press', 'backspace'] : ['hotkey', 'ctrl', 'a'];
  };
  const answer = (text) => fill(one('#area input[type=text], #area input:not([type])'), text, submit);
  const arithmetic = () => {
    const [, left, sign, right] = one('#math-problem').textContent.match(/(-?\d+)\s*([-+x*])\s*(-?\d+)/);
    const [a, b] = [Number(left), Number(right)];
    return String(sign === '+' ? a + b : sign === '-' ? a - b : a * b);
  };
  const setBoxes = (wanted) => {
    for (const label of all('#area label')) {
      const box = label.querySelector('input');
      if (box.checked !== wanted.includes(label.textContent.trim())) return bringIntoView(box) || click(box);
    }
    return submit();
  };
  const list = (text) => (text === 'nothing' ? [] : text.split(', '));
  // Turn the wheel over the box that scrolls, where it hides the element.
  const bringIntoView = (element) => {
    for (let box = element.parentElement; box && box !== document.body; box = box.parentElement) {
      if (box.scrollHeight <= box.clientHeight + 1 || !/auto|scroll/.test(getComputedStyle(box).overflowY)) continue;
      const [inner, outer] = [element.getBoundingClientRect(), box.getBoundingClientRect()];
      const y = inner.y + inner.height / 2;
      if (y < outer.top) return ['scroll', 'up', ...middle(box)];
      if (y > outer.bottom) return ['scroll', 'down', ...middle(box)];
    }
    return null;
  };
  const spin = (wanted) => {
    const value = Number(one('#spinner').value);
    if (value === wanted) return submit();
    return click(one(value < wanted ? '.ui-spinner-up' : '.ui-spinner-down'));
  };
  const algebra = () => {
    const [, left, sign, right, total] = one('#math-problem').textContent.match(/(\w+) ([-+]) (\w+) = (-?\d+)/);
    if (sign === '+') return String(total - (left === 'x' ? right : left));
    return String(left === 'x' ? Number(total) + Number(right) : left - total);
  };
  const openList = (list, text) => {
    if (list.value === text) return submit();
    const option = [...list.options].find((e) => e.textContent === text);
    return list.size > 1 ? bringIntoView(option) || click(option) : click(list);
  };
  const searchTabs = () => {
    const link = named('.alink', quoted()[0]);
    if (link) return click(link);
    const tabs = all('#area ul a');
    const hidden = all('#area [id^="tabs-"]').findIndex((panel) =>
      [...panel.querySelectorAll('.alink')].some((e) => e.textContent === quoted()[0]));
    return click(tabs[hidden] || tabs[tabs.length - 1]); // one page takes its second tab for "nowhere"
  };
  const completed = () => {
    const [start, end = ''] = quoted();
    const item = ui_utils.COUNTRIES.find((e) => e.startsWith(start) && e.endsWith(end));
    const offered = named('.ui-menu-item', item);
    return fill(one('#tags'), item, () => (offered ? click(offered) : submit()));
  };
  const copyPaste = (source, target) => {
    if (target.value === source.value) return submit();
    if (document.activeElement === target) return ['hotkey', 'ctrl', 'v'];
    if (document.activeElement !== source) return click(source);
    const selected = source.selectionStart === 0 && source.selectionEnd === source.value.length;
    if (!selected) return ['hotkey', 'ctrl', 'a'];
    if (copied !== WOB_EPISODE_ID) { copied = WOB_EPISODE_ID; return ['hotkey', 'ctrl', 'c']; }
    return click(target);
  };
  let copied = -1;
  const slide = (wanted) => {
    const widget = $('#slider');
    const [value, low, high] = [widget.slider('value'), widget.slider('option', 'min'), widget.slider('option', 'max')];
    if (value === wanted) return submit();
    const handle = one('#slider .ui-slider-handle');
    const flat = widget.slider('option', 'orientation') === 'horizontal';
    const track = one('#slider').getBoundingClientRect();
    const pixels = (flat ? track.width : -track.height) * (wanted - value) / (high - low);
    const [x, y] = middle(handle);
    if (Math.abs(pixels) >= 2) return ['drag', x, y, flat ? x + pixels : x, flat ? y : y + pixels];
    return document.activeElement === handle ? ['press', wanted > value ? 'right' : 'left'] : click(handle);
  };
  const highlight = (element) => {
    const squeeze = (text) => text.replace(/\s/g, '');
    if (squeeze(String(getSelection())) === squeeze(element.textContent)) return submit();
    const range = document.createRange();
    range.selectNodeContents(element);
    const lines = [...range.getClientRects()];
    const [first, last] = [lines[0], lines[lines.length - 1]];
    return ['drag', first.left, first.top + first.height / 2, last.right, last.top + last.height / 2];
  };
  const shapeName = () => {
    const figure = one('#area_svg text, #area_svg circle, #area_svg rect, #area_svg polygon');
    if (figure.tagName === 'text') return /\d/.test(figure.textContent) ? 'digit' : 'letter';
    return { circle: 'circle', rect: 'rectangle', polygon: 'triangle' }[figure.tagName];
  };
  const wordAt = (position) => one('#area p').textContent.trim().split(/\s+/)[position - 1].replace(/[^a-zA-Z]/g, '');
  const turn = (box, direction) => {
    const rest = direction === 'bottom' ? box.scrollHeight - box.clientHeight - box.scrollTop : box.scrollTop;
    return rest < 1 ? submit() : ['scroll', direction === 'bottom' ? 'down' : 'up', ...middle(box)];
  };
  const parity = () => {
    for (const row of all('#numbers .row')) {
      const odd = Number(row.querySelector('.display-number').textContent) % 2 !== 0;
      const button = row.querySelector(odd ? '.odd' : '.even');
      if (!button.classList.contains('selected')) return click(button);
    }
    return submit();
  };
  const generated = () => {
    const shown = one('#display-number').textContent;
    const [value, said] = [Number(shown), utterance()];
    const limit = Number((said.match(/than (\d+)/) || [])[1]);
    const good = said.includes('less') ? value < limit : said.includes('greater') ? value > limit
      : (value % 2 !== 0) === said.includes('odd');
    return shown !== '-' && good ? submit() : click(one('#generate'));
  };
  const shades = (colour) => {
    const missing = all(`#area span[data-color="${colour}"]`).find((e) => !e.classList.contains('selected'));
    return missing ? click(missing) : submit();
  };
  const greatest = () => {
    const value = (card) => Number(card.querySelector('.card-value').textContent);
    const best = all('.card').reduce((a, b) => (value(a) > value(b) ? a : b));
    return best.classList.contains('hidden') ? click(best) : submit();
  };
  const boxInBox = () => {
    const [small, large] = [one('#draggableSmall').getBoundingClientRect(), one('#draggableLarge').getBoundingClientRect()];
    const inside = small.left > large.left + 1 && small.right < large.right - 1 && small.top > large.top + 1 &&
      small.bottom < large.bottom - 1;
    if (inside) return submit();
    return ['drag', ...middle(one('#draggableSmall')), large.x + large.width / 2, large.y + large.height / 2];
  };
  const similar = () => {
    const words = asked(/similar to (.*) and click/).split(', ');
    return setBoxes(SYNONYMS.filter((group) => words.some((word) => group.includes(word))).flat());
  };
  const typeDate = () => {
    const [month, day, year] = asked(/(\d+\/\d+\/\d+)/).split('/');
    if (one('#tt').value === `${year}-${month}-${day}`) return submit();
    return document.activeElement === one('#tt') ? ['type', month + day + year] : ['click', ...dateStart(one('#tt'))];
  };
  const dateStart = (field) => {
    const box = field.getBoundingClientRect();
    return [box.x + 8, box.y + box.height / 2];
  };
  const typeTime = () => {
    const [, hour, minute, half] = utterance().match(/(\d+):(\d+)\s*([AP]M)/);
    const hours = (Number(hour) % 12) + (half === 'PM' ? 12 : 0);
    if (one('#tt').value === `${String(hours).padStart(2, '0')}:${minute}`) return submit();
    if (document.activeElement !== one('#tt')) return ['click', ...dateStart(one('#tt'))];
    return ['type', hour.padStart(2, '0') + minute + half];
  };
  const tableValue = (key) => all('#tab tr').find((row) => row.cells[0].textContent === key).cells[1].textContent;
  const changeCase = () => {
    const text = quoted()[0];
    return utterance().includes('upper') ? text.toUpperCase() : text.toLowerCase();
  };
  const openSection = (next) => (all('.ui-accordion-content').some(visible) ? next() : click(one('#area h3')));

  const solutions = {
    'ascending-numbers': () => click(one('#area svg text, #area svg rect')),
    'choose-list': () => openList(one('#options'), asked(/^Select (.*) from the list/)),
    'click-button': () => click(named('#area button', quoted()[0])),
    'click-button-sequence': () => click(buttonsPushed.length === 0 ? one('#subbtn') : one('#subbtn2')),
    'click-checkboxes': () => setBoxes(list(asked(/^Select (.*) and click/))),
    'click-checkboxes-large': () => setBoxes(list(asked(/^Select (.*) and click/))),
    'click-checkboxes-transfer': () => setBoxes(list(asked(/^Select (.*) and click/))),
    'click-checkboxes-soft': similar,
    'click-collapsible': () => openSection(submit),
    'click-collapsible-nodelay': () => openSection(submit),
    'click-color': () => click(all('#area .color').find((e) => e.dataset.color === asked(/on the (.*) colored/))),
    'click-dialog': () => click(all('.ui-dialog-titlebar button').find(visible)),
    'click-dialog-2': () => (quoted()[0] === 'x' ? click(one('.ui-dialog-titlebar button'))
      : click(named('.ui-dialog-buttonset button', quoted()[0]))),
    'click-link': () => click(named('.alink', quoted()[0])),
    'click-option': () => {
      const label = all('#boxes label').find((e) => e.textContent.trim() === asked(/^Select (.*) and click/));
      const option = label.querySelector('input');
      return option.checked ? submit() : click(option);
    },
    'click-shades': () => shades(asked(/shades of (\w+)/)),
    'click-tab-2': searchTabs,
    'click-tab-2-easy': searchTabs,
    'click-tab-2-hard': searchTabs,
    'click-tab-2-medium': searchTabs,
    'click-tab': () => click(all('#area ul a')[Number(asked(/#(\d)/)) - 1]),
    'click-test': () => submit(),
    'click-test-2': () => submit(),
    'click-test-transfer': () => submit(),
    'click-widget': () => click(one(`#area [data-type="${quoted()[0]}"]`)),
    'copy-paste': () => copyPaste(one('#to-copy'), one('#answer-input')),
    'drag-box': boxInBox,
    'enter-date': typeDate,
    'enter-password': () => fill(one('#password'), quoted()[0], () => fill(one('#verify'), quoted()[0], submit)),
    'enter-text': () => answer(quoted()[0]),
    'enter-text-2': () => answer(changeCase()),
    'enter-text-dynamic': () => answer(quoted()[0]),
    'enter-time': typeTime,
    'find-greatest': greatest,
    'find-word': () => answer(wordAt(Number(asked(/the (\d+)/)))),
    'focus-text': () => click(one('#area input')),
    'focus-text-2': () => click(one(`#tt${asked(/the (\d)/)}`)),
    'generate-number': generated,
    'grid-coordinate': () => click(document.getElementById(asked(/(\(.*\))/))),
    'highlight-text': () => highlight(one('#randomText')),
    'identify-shape': () => click(one(`#area-buttons [data-type="${shapeName()}"]`)),
    'login-user': () => fill(one('#username'), quoted()[0], () => fill(one('#password'), quoted()[1], submit)),
    'odd-or-even': parity,
    'read-table': () => answer(tableValue(asked(/value of (.*) into/))),
    'scroll-text-2': () => turn(one('#text-area'), asked(/to the (bottom|top)/)),
    'simple-algebra': () => answer(algebra()),
    'simple-arithmetic': () => answer(arithmetic()),
    'text-transform': () => answer(one('#captcha').textContent),
    'unicode-test': () => click(named('#area button', quoted()[0])),
    'use-autocomplete': completed,
    'use-autocomplete-nodelay': completed,
    'use-slider': () => slide(Number(asked(/Select (-?\d+)/))),
    'use-spinner': () => spin(Number(asked(/Select (-?\d+)/))),
  };

  const CLICKABLE = '#area button, #area input, #area textarea, #area select, #area a, #area h3, #area .color, ' +
    '#area circle, #area [data-type], .alink, .ui-dialog button, .ui-spinner-button';
  const near = (a, b) => Math.abs(a[0] - b[0]) + Math.abs(a[1] - b[1]) < 4;
  Object.assign(window.arpo, {
    solvable: Object.keys(solutions).sort(),
    solve: (page) => (WOB_DONE_GLOBAL ? null : solutions[page]()),
    distractors: (page) => {
      const right = page in solutions ? solutions[page]() : null;
      const wrong = (point) => !(right && right[0] === 'click' && near(point, right.slice(1)));
      const places = all(CLICKABLE).filter(visible).map(middle).filter(wrong);
      return places.filter(([x, y], i) => x >= 0 && y >= 0 && x < visualViewport.width && y < innerHeight &&
        places.findIndex((other) => near(other, places[i])) === i);
    },
  });
})();
