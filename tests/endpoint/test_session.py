"""A foreign agent's episode as a tree of exchanges: what the engine got and sampled, and what of it is trained."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arpo.endpoint.conversation import Picture
from arpo.endpoint.rendering import Renderer
from arpo.endpoint.session import COUNTED, KEPT, Alias, Budgets
from arpo.endpoint.wire.dialects import DIALECTS
from arpo.errors import EngineError, RefusedError
from arpo.models.tokenization import tokenize
from tests.endpoint.episodes import Episode
from tests.endpoint.samples import STAMP
from tests.endpoint.test_rendering import TOOL, ask, call_of, result, said, thinking, user
from tests.endpoint.test_splicing import edited
from tests.models.samples import screenshot

KEY = "path", "key"
SHOTS = [Picture(png, key, 112, 140) for key, png in map(screenshot, range(3))]


@pytest.fixture(scope="module")
def plain(chats):
    return chats["plain"]


@pytest.fixture
def episode(plain):
    return Episode(plain)


def tree(episode):
    """Return the parents, and how many of the exchanges begin, continue and fork."""
    counters = episode.session.counters()
    parents = [exchange.parent for exchange in episode.trajectory().exchanges]
    return parents, tuple(counters[name] for name in ("begun", "continued", "forked"))


def test_an_agent_that_only_appends_has_one_chain_with_each_picture_once(chat):
    episode = Episode(chat)
    messages = [user("Do it.", SHOTS[0])]
    for turn in range(4):
        text = thinking(episode.renderer, f"Turn {turn}.\n{call_of(episode.renderer)}")
        _, answered = episode.answer(ask(*messages, tools=(TOOL,)), text, ended=turn != 2)
        messages += [*answered, result("done", SHOTS[turn % 3])]
    made = episode.trajectory()
    shown = [[picture.key for picture in exchange.pictures] for exchange in made.exchanges]
    assert shown == [[SHOTS[number].key] for number in (0, 0, 1, 2)]
    assert len(tokenize(made, chat)) == 1
    assert tree(episode) == ([None, 0, 1, 2], (1, 3, 0))


def test_an_edited_history_is_a_new_root_and_a_branch_goes_on_from_where_it_was_left(episode):
    first, second = user("Do it."), user("Go on.")
    _, [one] = episode.answer(ask(first), "Yes")
    _, [two] = episode.answer(ask(first, one, second), "Well")
    episode.answer(ask(first, said("No"), second), "Edited")
    episode.answer(ask(first, one, user("Stop.")), "Branch")
    episode.answer(ask(first, one, second, two, second), "So")
    episode.answer(ask(user("Another.")), "New")
    assert tree(episode) == ([None, 0, None, 0, 1, None], (2, 3, 1))


def test_siblings_are_all_trained_and_any_of_them_goes_on(episode):
    turns, answered = episode.answer(ask(user("x"), n=3), "One", "Two", "Three")
    assert len({turn.request.sampling.seed for turn in turns}) == len({turn.name for turn in turns}) == 3
    episode.answer(ask(user("x"), answered[1], user("y")), "Four")
    made = episode.trajectory()
    assert [exchange.parent for exchange in made.exchanges] == [None, None, None, 1]
    assert made.sequences() == [([0], [0]), ([2], [2]), ([1, 3], [1, 3])]


def test_what_stands_behind_a_stop_is_sampled_and_in_no_context_and_not_trained(episode):
    ids = episode.chat.encode_response("Action: wait()\nObs: click")[:-1]
    _, [answered] = episode.answer(ask(user("x"), stop=("\nObs",)), "", ids=ids)
    assert answered.said() == "Action: wait()"
    episode.answer(ask(user("x"), answered, user("Obs: real")), "Yes")
    first, second = episode.trajectory().exchanges
    assert second.parent == 0
    assert episode.chat.decode(first.trained_ids) == "Action: wait()"
    assert episode.chat.decode(first.response_ids) == "Action: wait()\nObs: click"


def test_an_answer_that_was_not_delivered_is_masked_and_in_no_later_context(episode):
    _, [lost] = episode.answer(ask(user("x")), "Yes", deliver=False)
    [turn], _ = episode.answer(ask(user("x"), lost, user("y")), "Well")
    assert turn.prompt.spliced == (None,)
    lost, heard = episode.trajectory().exchanges
    assert (lost.parent, lost.trained, lost.said_ids) == (heard.parent, not heard.trained, ()) == (None, False, ())
    assert episode.session.counters()["undelivered"] == 1


def test_a_request_that_is_sent_again_has_the_same_bytes_and_counts_once(episode):
    asked = ask(user("x"), tools=(TOOL,))
    assert episode.session.known(KEY, asked) is None
    turns = episode.session.open(asked)
    episode.session.remember(KEY, turns, STAMP)
    assert episode.session.known(KEY, asked).turns == tuple(turns)  # its twin is in flight
    assert episode.session.answers(turns) is None
    episode.record(turns[0], f"Yes\n{call_of(episode.renderer)}")
    sent = []
    for _ in range(2):
        kept = episode.session.known(KEY, asked)
        sent.append(DIALECTS["chat"].reply(episode.session.answers(kept.turns), kept.stamp))
        episode.session.deliver(kept.turns)
    assert sent[0] == sent[1]
    assert b'"name":"click"' in sent[0]
    with pytest.raises(RefusedError, match="used for another body") as refused:
        episode.session.known(KEY, ask(user("y"), tools=(TOOL,)))
    assert refused.value.kind == "invalid"
    for number in range(KEPT):
        assert episode.session.known(KEY, asked) is not None
        episode.session.remember(("path", str(number)), turns, STAMP)
    assert episode.session.known(KEY, asked) is None  # the oldest are forgotten
    assert [exchange.trained for exchange in episode.trajectory().exchanges] == [True]


def test_a_turn_that_the_engine_has_failed_is_asked_anew_and_frees_its_budget(plain):
    episode = Episode(plain, budgets=Budgets(answers=1, tokens=100))
    asked = ask(user("x"))
    turns = episode.session.open(asked)
    episode.session.remember(KEY, turns, STAMP)
    with pytest.raises(RefusedError):
        episode.session.open(ask(user("y")))
    episode.session.drop(turns)
    assert episode.session.known(KEY, asked) is None
    with pytest.raises(ValueError, match="is not in flight"):
        episode.record(turns[0], "Yes")
    [again], _ = episode.answer(ask(user("x")), "Yes")
    assert again.request.sampling.max_tokens == 100
    episode.session.drop([again])  # too late
    assert len(episode.trajectory().exchanges) == 1
    assert episode.session.counters()["dropped"] == 1


def test_seeds_follow_from_the_context_and_how_often_it_was_asked_in_whatever_order(plain):
    asks = [ask(user("x")), ask(user("x", SHOTS[0])), ask(user("x", SHOTS[1]))]
    asks.append(replace(asks[0], alias="helper"))

    def seeds(order, **options):
        session, found = Episode(plain, **options).session, {}
        for number in order:
            found.setdefault(number, []).append(session.open(asks[number])[0].request.sampling.seed)
        return found

    found = seeds([0, 1, 2, 3, 0])
    assert len({seed for each in found.values() for seed in each}) == 5  # a second ask is another one
    assert all(0 <= seed < 2**63 for each in found.values() for seed in each)
    assert found == seeds([3, 0, 2, 0, 1])
    assert found[0] != seeds([0, 0], seed=8)[0]


def test_sampling_is_the_runs_and_an_answer_is_as_long_as_all_limits_allow(plain):
    aliases = {"policy": Alias(), "greedy": Alias(trained=False, temperature=0.0)}
    episode = Episode(plain, budgets=Budgets(answers=9, tokens=300), max_tokens=60, aliases=aliases)
    for alias, temperature in (("policy", 0.8), ("greedy", 0.0), ("gpt-5", 0.8)):
        [turn] = episode.session.open(replace(ask(user("x", SHOTS[0]), max_tokens=50), alias=alias), least_version=2)
        assert (turn.request.sampling.temperature, turn.request.sampling.max_tokens) == (temperature, 50)
        assert (turn.request.conversation, turn.request.least_version) == ("0/1/2", 2)
    assert episode.session.open(ask(user("x"), max_tokens=90))[0].request.sampling.max_tokens == 60
    # Of 300 tokens, 3 · 50 + 60 are held by those in flight: 90 are left for two.
    assert [each.request.sampling.max_tokens for each in episode.session.open(ask(user("x"), n=2))] == [45, 45]
    tokens = turn.prompt_tokens
    assert tokens == plain.context_length(turn.prompt.ids, [(112, 140)]) > len(turn.prompt.ids)
    roomy = Episode(plain, max_context=tokens + 7).session
    assert roomy.open(ask(user("x", SHOTS[0])))[0].request.sampling.max_tokens == 7
    with pytest.raises(RefusedError, match=f"{tokens} tokens > {tokens} maximum") as refused:
        Episode(plain, max_context=tokens).session.open(ask(user("x", SHOTS[0])))
    assert refused.value.kind == "context_length_exceeded"


def test_a_text_that_is_longer_than_any_context_is_refused_before_it_is_tokenized(plain, monkeypatch):
    session = Episode(plain, max_context=50).session
    monkeypatch.setattr(plain, "turns", None)
    with pytest.raises(RefusedError, match="prompt is too long: 50 tokens > 50") as refused:
        session.open(ask(user("x" * 50 * plain.longest_token)))
    assert refused.value.kind == "context_length_exceeded"


def test_only_answers_of_trained_aliases_are_trained(episode):
    for alias in ("policy", "helper", "greedy", "gpt-5"):
        episode.answer(replace(ask(user("x")), alias=alias), "Yes")
    assert [exchange.trained for exchange in episode.trajectory().exchanges] == [True, False, False, True]
    counters = episode.session.counters()
    assert (counters["of_policy"], counters["of_helper"], counters["of_greedy"]) == (2, 1, 1)


@pytest.mark.parametrize("budgets", [Budgets(answers=2, tokens=100), Budgets(answers=9, tokens=2)])
def test_a_spent_budget_is_refused_until_the_end(plain, budgets):
    episode = Episode(plain, budgets=budgets)
    for _ in range(2):
        episode.answer(ask(user("x")), "", ids=(40,), ended=False)
    with pytest.raises(RefusedError, match="budget is spent") as refused:
        episode.session.open(ask(user("x")))
    assert (refused.value.kind, refused.value.retry_after_s) == ("rate_limit_exceeded", 10.0)


def test_pictures_that_are_recorded_or_in_flight_spend_their_budget_once(plain):
    sizes = [len(shot.png) for shot in SHOTS]
    episode = Episode(plain, budgets=Budgets(9, 10**4, picture_bytes=sum(sizes[:2]) - 1))
    episode.answer(ask(user("x", SHOTS[0])), "Yes")
    for _ in range(2):
        turns = episode.session.open(ask(user("y", *SHOTS[:2])))
        with pytest.raises(RefusedError, match=f"bytes of pictures {sum(sizes[:2])},"):
            episode.session.open(ask(user("x")))
        episode.session.drop(turns)
    episode.answer(ask(user("x", SHOTS[0])), "Yes")
    assert len(episode.trajectory().screenshots) == 1


def test_nothing_comes_into_the_record_behind_the_end(episode):
    late, _ = episode.answer(ask(user("x")), "Yes", deliver=False)
    [turn] = episode.session.open(ask(user("x")))
    record = episode.session.close()
    session, response = episode.session, episode.response("Yes")
    opens, records = lambda: session.open(ask(user("x"))), lambda: session.record(turn, response)
    for call in (opens, records, lambda: session.deliver(late), lambda: session.known(KEY, turn.ask)):
        with pytest.raises(RefusedError, match="has ended") as refused:
            call()
        assert refused.value.kind == "closed"
    assert (session.close(), session.counters()["dropped"]) == (record, 1)
    assert [exchange.trained for exchange in record] == [False]


def test_a_response_that_cannot_have_been_sampled_is_the_engines_failure(plain):
    episode = Episode(plain, max_tokens=20)
    [turn] = episode.session.open(ask(user("x")))
    good = episode.response("Yes")
    wrong = [
        replace(good, logprobs=good.logprobs[:-1]),
        replace(good, logprobs=(float("nan"), *good.logprobs[1:])),
        replace(good, finish_reason="abort"),
        replace(good, token_ids=(plain.image_token_id, *good.token_ids[1:])),
        replace(episode.response("Yes", ended=False), finish_reason="stop"),
        episode.response("", ids=(), ended=False),
        episode.response("", ids=(40,) * 20),
    ]
    for response in wrong:
        with pytest.raises(EngineError, match="response"):
            episode.session.record(turn, response)
    with pytest.raises(ValueError, match="have no response"):
        episode.session.deliver([turn])
    episode.session.record(turn, good)
    with pytest.raises(ValueError, match="is not in flight"):
        episode.session.record(turn, good)
    assert len(episode.session.close()) == 1


def test_options_without_effect_are_counted_by_name_and_there_are_not_endlessly_many(plain):
    session = Episode(plain).session
    for number in range(2 * COUNTED):
        session.open(ask(user("x"), unhonoured=("top_p", "top_p", f"evil\n{number}")))
    counters = session.counters()
    assert (counters["unhonoured_top_p"], counters["unhonoured_evil_0"]) == (2 * COUNTED, 1)
    assert counters["unhonoured"] > COUNTED
    assert len(counters) <= COUNTED + 3


def test_a_picture_that_the_template_drops_is_refused(plain):
    class Dropping(Renderer):
        def prompt(self, asked, past):
            prompt = super().prompt(asked, past)
            return replace(prompt, ids=tuple(each for each in prompt.ids if each != plain.image_token_id))

    with pytest.raises(RefusedError, match="of the 1 pictures in messages, the chat template writes 0"):
        Episode(plain, Dropping(plain)).session.open(ask(user("x", SHOTS[0])))


def test_a_window_of_pictures_has_a_root_a_step_once_it_moves_and_trains_each_answer_once(plain):
    """As our own loop and UI-TARS: all texts stay, of the pictures the last two."""
    episode, turns = Episode(plain), []
    for step in range(4):
        shown = [[user(SHOTS[at % 3])] if at > step - 2 else [] for at in range(step + 1)]
        history = [each for at, before in enumerate(turns) for each in (*shown[at], before)]
        _, answered = episode.answer(ask(user("Do it."), *history, *shown[step]), f"Action: wait({step})")
        turns += answered
    assert tree(episode) == ([None, 0, None, None], (1, 1, 2))


# --- any history ----------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(["Yes", " So.\n", "Action: wait()", "click(start_box='<|box_start|>(1,2)<|box_end|>')"])
THOUGHTS = st.sampled_from(["", "Hm."])
REAL = {f"shot {number}": shot for number, shot in enumerate(SHOTS)}


def with_pixels(message):
    parts = [REAL.get(part.key, part) if isinstance(part, Picture) else part for part in message.parts]
    return replace(message, parts=tuple(parts))


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("history", ["template", "verbatim"])
def test_however_a_history_is_edited_the_record_is_what_the_engine_got_and_nothing_is_lost(chat, history, data):
    def one_of(*values):
        return data.draw(st.sampled_from(values))

    renderer = Renderer(chat, history)
    episode, messages = Episode(chat, renderer), [user("Do it.", SHOTS[0])]
    trained, late = [], []
    for _ in range(5):
        messages = [with_pixels(message) for message in data.draw(edited(messages))]
        alias, arrives = one_of("policy", "gpt-5", "helper"), one_of("now", "later", "never")
        asked = ask(*messages, tools=(TOOL,), n=one_of(1, 2), stop=one_of((), ("wait",)))
        bodies = [data.draw(TEXTS) + one_of("", call_of(renderer)) for _ in range(asked.n)]
        texts = [thinking(renderer, body, thought=data.draw(THOUGHTS)) for body in bodies]
        options = {"deliver": arrives == "now", "ended": one_of(True, False)}
        turns, answered = episode.answer(replace(asked, alias=alias), *texts, **options)
        late += [turns] if arrives == "later" else []
        if late and one_of(True, False):
            episode.session.deliver(late.pop())
        trained += [alias != "helper" and arrives != "never"] * asked.n
        messages = [*messages, answered[-1], one_of(result("ok"), user("And?"), user(SHOTS[1]))]
    for turns in late:
        episode.session.deliver(turns)
    made = episode.trajectory()
    assert [exchange.trained for exchange in made.exchanges] == trained
    learnt = Counter(number for _, numbers in made.sequences() for number in numbers)
    assert learnt == Counter(number for number, each in enumerate(made.exchanges) if each.trained and each.said_ids)
