// The tree of exchanges of an episode whose exchanges are not its steps in a row: those of another agent, or of a window.
"use strict";

// Whether each exchange is a step and each step an exchange, which goes on from the one before.
function isOneChain({ steps, exchanges }) {
  return steps.length === exchanges.length
    && exchanges.every(({ parent }, number) => steps[number].exchange === number && parent === (number ? number - 1 : null));
}

function tree(member, step, go) {
  const { exchanges } = member;
  if (!exchanges.length || isOneChain(member)) return null; // a script has no exchanges
  const children = exchanges.map(() => []), roots = [];
  exchanges.forEach(({ parent }, number) => (parent === null ? roots : children[parent]).push(number));
  const size = exchanges.map(() => 1); // of each exchange and all that go on from it
  for (let number = exchanges.length - 1; number >= 0; number--) if (exchanges[number].parent !== null) size[exchanges[number].parent] += size[number];
  const steps = exchanges.map(() => []);
  member.steps.forEach(({ exchange }, at) => steps[exchange]?.push(at));

  // The line goes on with the child that most exchanges follow, so that forks never nest deeper than their number's logarithm.
  const chain = (number, kind) => {
    const rows = [];
    for (let at = number; at !== undefined;) {
      const next = children[at].reduce((most, each) => (most === undefined || size[each] > size[most] ? each : most), undefined);
      const forks = children[at].filter((each) => each !== next);
      rows.push(h("li", {}, exchangeOf(member, at, steps[at], step, go), forks.map((each) => chain(each, "fork"))));
      at = next;
    }
    return h("ol", { class: `chain ${kind}` }, rows);
  };
  const forks = children.reduce((sum, each) => sum + Math.max(0, each.length - 1), 0);
  const trained = exchanges.filter((each) => each.trained).length;
  return h("section", { class: "tree", id: "tree" },
    h("h2", {}, "Exchanges ", h("small", {}, [plural(exchanges.length, "exchange"), plural(roots.length, "beginning"), plural(forks, "fork"), `${trained} trained`].join(" · "))),
    roots.map((root) => chain(root, "root")));
}

// Whether an update may learn from an exchange, and why it may not: a kind and some words.
function standing({ trained, delivered, response_ids: ids }) {
  if (!trained) return delivered === 0 ? ["bad", "not trained: never arrived"] : ["", "not trained: said by a helper"];
  const given = delivered ?? ids.length;
  return given < ids.length ? ["cut", `trained: ${given} of ${ids.length}, the rest is behind a stop`] : ["good", "trained"];
}

function exchangeOf(member, number, steps, shown, go) {
  const each = member.exchanges[number];
  const given = each.delivered ?? each.response_ids.length;
  const [kind, why] = standing(each);
  const facts = [each.finish, `version ${each.policy_version}`, `${plural(each.added_ids.length, "token")} added`, `${each.response_ids.length} said`];
  // Without a vocabulary, what a step says is there all the same.
  const words = !member.words.size && steps.length ? member.steps[steps[0]].response : null;
  const cut = words === null && given < each.response_ids.length;
  return h("div", { class: `exchange${steps.includes(shown) ? " chosen" : ""}${each.trained ? "" : " masked"}` },
    h("div", { class: "grow" },
      h("div", { class: "chips" }, h("b", {}, number), h("span", { class: `chip ${kind}` }, why),
        steps.map((at) => link(go(at), { class: "chip" }, `step ${at + 1}: `, deed(member, at))),
        h("span", { class: "quiet" }, said(facts.filter(Boolean).join(" · ")))),
      h("p", { class: "words" }, said(words ?? member.text(each.response_ids.slice(0, given))), cut ? h("del", {}, said(member.text(each.response_ids.slice(given)))) : null),
      onDemand("Context added", () => h("pre", { class: "before" }, said(member.text(each.added_ids))))),
    each.pictures.length ? h("div", { class: "strip" }, each.pictures.map((seen) => h("div", { class: "thumb", tip: `${seen.width} × ${seen.height}` }, screenshot(member, seen.key, seen)))) : null);
}
