"""The tree of exchanges on the page of an episode, where its exchanges are not its steps in a row."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from arpo.apps.viewer.site import Site
from arpo.types import Exchange, Picture, Step, screenshot_key
from tests.apps.viewer.support import address, make_episode, make_png, write_run
from tests.browser import needs_chromium
from tests.exchanges import with_exchanges

pytestmark = [pytest.mark.browser, needs_chromium, pytest.mark.timeout(120)]

SAID = (
    "I look at the window . <|im_end|>",
    "Action: click(start_box='(40,60)') <|im_end|>",
    "Title: Press the button <|im_end|>",
    "Action: click(start_box='(90,60)') <|im_end|>",
    "Action: type(content='hello') <|im_end|> I also wanted to say",
    "Action: wait() <|im_end|>",
    "Summary: the dialog is open . <|im_end|>",
    "Action: click(start_box='(20,20)') <|im_end|>",
    "Action: click(start_box='(120,100)') <|im_end|>",
    "Action: scroll(",
    "Action: wait() <|im_end|>",
    "Action: finished() <|im_end|>",
)
PARENTS = (None, 0, None, 1, 3, 3, 2, 4, 5, 8, 1, 8)
"""Two beginnings, 0 and 2, and of 0 the chain 0, 1, 3, 5, 8 and 9, from which 10, 4 and 11 fork off."""
ACTED = {1: "click(start_box='(40,60)')", 3: "click(start_box='(90,60)')", 4: "type(content='hello')",
         7: "click(start_box='(20,20)')", 8: "click(start_box='(120,100)')", 11: "finished()"}  # fmt: skip
HELPER, LOST, CUT = {2, 6}, {10}, {4: 3}


class Words(dict):
    """The number of each word, in the order of first appearance."""

    def of(self, text: str) -> tuple[int, ...]:
        return tuple(self.setdefault(f"Ġ{word}", len(self)) for word in text.split(" "))


def forked(words: Words):
    """An episode of twelve exchanges and six steps: a helper's two, one that never arrived, and one behind a stop."""
    pngs = [make_png(30 * number, (160, 120)) for number in range(4)]
    shown = [Picture(screenshot_key(png), 160, 120) for png in pngs]
    exchanges = []
    for number, (parent, text) in enumerate(zip(PARENTS, SAID, strict=True)):
        ids = words.of(text)
        exchanges.append(
            Exchange(
                parent,
                words.of("system : press it" if parent is None else "user : and now ?"),
                (shown[number % 4],) if number in ACTED or number == 0 else (),
                ids,
                tuple(-0.1 for _ in ids),
                number // 6,
                "length" if number == 9 else "stop",
                number not in HELPER | LOST,
                0 if number in LOST else CUT.get(number),
            )
        )
    steps = [
        Step(exchanges[at].pictures[0].key, 160, 120, SAID[at].split(" <")[0], action, exchange=at)
        for at, action in ACTED.items()
    ]
    screenshots = {screenshot_key(png): png for png in pngs}
    made = make_episode("0/0/0", exchanges=tuple(exchanges), steps=tuple(steps), screenshots=screenshots)
    return replace(made, last_screenshot=shown[0].key)


@pytest.fixture
def view(tmp_path):
    """Writes a run of one episode, with the vocabulary of its words, and returns the viewer's folder."""

    def write(episode, words=None):
        run = tmp_path / "run"
        write_run(run, [episode])
        if words is not None:
            (run / "model").mkdir()
            Tokenizer(WordLevel(words, unk_token=next(iter(words)))).save(str(run / "model" / "tokenizer.json"))
            (run / "config.yaml").write_text(f"model:\n  path: {run / 'model'}\n")
        Site([run], tmp_path / "view").write()
        return tmp_path / "view"

    return write


def drawn(page):
    """A line for each exchange in the order of the page: a mark where it is on a fork, its number and its standing."""
    return page.value(
        "[...document.querySelectorAll('#tree .exchange')].map((each) => (each.closest('.fork') ? '> ' : '')"
        " + each.querySelector('b').innerText + ' ' + each.querySelector('.chip').innerText)"
    )


def test_the_tree_shows_chains_forks_and_beginnings_and_why_an_exchange_is_not_trained(page, view):
    words = Words()
    out = view(forked(words), words)
    page.open(address(out, "#/a/episode/0%2F0/0/3"))
    assert drawn(page) == [
        "0 trained",
        "1 trained",
        "> 10 not trained: never arrived",
        "3 trained",
        "> 4 trained: 3 of 8, the rest is behind a stop",
        "> 7 trained",
        "5 trained",
        "8 trained",
        "> 11 trained",
        "9 trained",
        "2 not trained: said by a helper",
        "6 not trained: said by a helper",
    ]
    assert page.text("#tree h2") == "Exchanges 12 exchanges · 2 beginnings · 3 forks · 9 trained"
    assert [page.count(f"#tree .chain.{kind}") for kind in ("root", "fork")] == [2, 3]
    # The step that is shown is exchange 4, whose first three tokens were delivered.
    assert page.texts(".exchange.chosen b") == ["4"]
    assert page.text(".exchange.chosen .words").split() == SAID[4].split()
    assert page.text(".exchange.chosen del").split() == SAID[4].split()[3:]
    assert page.text(".exchange.chosen .chips").endswith("stop · version 0 · 5 tokens added · 8 said")
    assert page.texts("#tree a.chip")[-1] == "step 6: finished"
    pictures = "[...document.querySelectorAll('#tree .exchange')].map((each) => each.querySelectorAll('img').length)"
    assert page.value(pictures) == [1, 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 0]
    page.click("#tree a.chip")  # of exchange 1
    page.until("document.querySelector('.exchange.chosen b')?.innerText === '1'")
    assert page.text("#at") == "step 1 of 6"


def test_without_a_vocabulary_the_tree_has_the_words_of_steps(page, view):
    out = view(forked(Words()))
    page.open(address(out, "#/a/episode/0%2F0/0/1"))
    assert page.texts(".exchange .words")[:2] == [
        "".join(f"⟨{number}⟩" for number in Words().of(SAID[0])),
        "Action: click(start_box='(40,60)')",
    ]


TWO = make_episode()
SCRIPT = tuple(replace(step, exchange=None) for step in TWO.steps)


@pytest.mark.parametrize(
    ("episode", "trees"),
    [
        (TWO, 0),
        (with_exchanges(TWO, parent=(None, None)), 1),
        (replace(TWO, steps=(*TWO.steps, SCRIPT[0])), 1),
        (replace(TWO, steps=SCRIPT, exchanges=()), 0),
    ],
    ids=["one chain", "a window of one screenshot", "a step of nobody's", "a script"],
)
def test_an_episode_in_which_each_step_goes_on_from_the_one_before_has_no_tree(page, view, episode, trees):
    page.open(address(view(episode), "#/a/episode/0%2F0/0/1"))
    assert page.count("#tree") == trees
    assert page.count(".stage") == 1
