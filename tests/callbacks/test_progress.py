"""The line of a terminal, the lines of a log, and the card at the end; read as a person reads them."""

import io
import logging
import os
import pty
import re
import select
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from arpo.callbacks.progress import Heartbeat, Painter, Progress, State, iteration_line, parts, progress_line
from arpo.callbacks.rollout_metrics import RolloutMetrics
from arpo.display.summary import RunSummary, clock
from arpo.rollout.meter import RolloutStatus
from tests.callbacks.support import IdleModule, fit

ROLLING = RolloutStatus(
    env_states={}, name="train", episodes_done=16, episodes_total=64, successes=4, steps=40, elapsed_s=8.0
)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=160)


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=160)


def shown(console: Console) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.fixture
def state() -> State:
    state = State(iteration=12, iterations=60)
    state.successes.extend([0.25, 0.75])
    state.durations.extend([10.0, 10.0])
    state.replayed, state.replay_size = 3, 14.0
    return state


def test_while_episodes_run_the_line_counts_them(state: State) -> None:
    said = " · ".join(parts(state, ROLLING))
    # success 4 of 16, mean of 0.25 and 0.75, 40 steps in 8 s; 49 iterations of 10 s are left, less what has passed
    for part in (
        "iteration 12/60",
        "rollout 16/64",
        "success 25 %",
        "last 2: 50 %",
        "replay 14, 3 injected",
        "5.0 steps/s",
    ):
        assert part in said
    assert re.search(r"8:(09|10) to go", said)


def test_during_an_evaluation_the_line_names_it(state: State) -> None:
    evaluating = RolloutStatus(env_states={}, name="held_out", episodes_done=1, episodes_total=8)
    assert "evaluation held_out 1/8" in parts(state, evaluating)


def test_after_the_rollout_the_line_says_that_the_policy_learns(state: State) -> None:
    state.phase = "update"
    done = RolloutStatus(env_states={}, name="train", episodes_done=64, episodes_total=64, successes=4)
    assert "update" in parts(state, done)


def test_an_update_is_not_hidden_by_episodes_of_a_later_iteration(state: State) -> None:
    state.phase = "update"
    assert "update" in parts(state, ROLLING)


def test_lost_episodes_are_said(state: State) -> None:
    losing = RolloutStatus(env_states={}, name="train", episodes_done=2, episodes_total=8, dropped=2)
    assert "2 episodes lost" in parts(state, losing)


def test_before_anything_is_known_nothing_is_made_up() -> None:
    assert parts(State(iteration=1), RolloutStatus(env_states={})) == ["iteration 1/?", "starting"]


def test_the_bar_moves_with_the_episodes_of_the_rollout(state: State) -> None:
    def bar(done: int) -> str:
        console = terminal()
        rollout = RolloutStatus(env_states={}, name="train", episodes_done=done, episodes_total=64)
        console.print(progress_line(State(iteration=1, iterations=1), rollout))
        return shown(console)

    assert bar(0) != bar(32) != bar(60)


def test_the_line_stays_one_line_in_a_narrow_terminal(state: State) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60)
    console.print(progress_line(state, ROLLING))
    assert shown(console).count("\n") == 1
    assert "rollout 16/64" in shown(console)


def test_a_finished_rollout_is_not_shown_as_the_next_one() -> None:
    done = RolloutStatus(env_states={}, name="train", episodes_done=64, episodes_total=64, successes=4, steps=9)
    assert parts(State(iteration=2, iterations=9), done) == ["iteration 2/9", "starting"]


def test_the_line_of_an_iteration_in_a_log_is_complete(state: State) -> None:
    assert iteration_line(state, 9.5) == (
        "iteration 12/60 · success 75 %, last 2: 50 % · replay 14, 3 injected · 9.5 s · 8:00 to go"
    )


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (754, "12:34"), (11_100, "3:05:00")])
def test_durations_are_written_as_people_read_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_card_tells_last_and_best_success_and_divides_the_rollout(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path)
    for iteration, success in enumerate((0.2, 0.9, 0.6), start=1):
        summary.add(
            iteration, {"rollout/success_rate": success, "time/rollout": 4.0, "time/env": 30, "time/generate": 10}
        )
    summary._started = time.monotonic() - 20  # the run took 20 s
    rows = dict(summary.rows())
    assert rows["rollout/success_rate"] == "60.0 % at the end, best 90.0 % (iteration 2)"
    # 12 of 20 s in rollouts: 3/4 of them waiting for the environment, 1/4 for the engine
    assert "environment 45 %, generation 15 %, update 0 %" in rows["wall time"]
    assert rows["results"] == str(tmp_path)


def test_without_a_terminal_an_iteration_is_a_line_and_the_card_follows(tmp_path, make_collector, caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo.callbacks.progress")
    callbacks = [RolloutMetrics(), Progress(plain())]
    fit(tmp_path, make_collector(start=False), callbacks, iterations=2)
    said = [record.getMessage() for record in caplog.records if record.name == "arpo.callbacks.progress"]
    assert [line.split(" · ")[0] for line in said[:2]] == ["iteration 1/2", "iteration 2/2"]
    assert any(line.startswith("rollout/success_rate: ") for line in said)
    assert any(str(tmp_path) in line for line in said)


def test_in_a_terminal_the_line_moves_during_the_rollout_and_the_card_follows(tmp_path, make_collector) -> None:
    console = terminal()
    module = IdleModule(at_step=lambda: time.sleep(0.6))
    fit(tmp_path, make_collector(start=False), [RolloutMetrics(), Progress(console)], iterations=2, module=module)
    text = shown(console)
    assert "iteration 1/2" in text
    assert "update" in text
    assert "ARPO" in text
    assert "tensorboard --logdir" in text


def test_an_error_gives_the_terminal_back(tmp_path, make_collector) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    console = terminal()
    with pytest.raises(RuntimeError, match="boom"):
        fit(tmp_path, make_collector(start=False), [Progress(console)], module=IdleModule(at_step=fail))
    raw = console.file.getvalue()
    assert raw.rfind("\x1b[?25h") > raw.rfind("\x1b[?25l")  # the cursor was hidden, and is shown again
    deadline = time.monotonic() + 10
    while any(type(thread).__name__ == "_RefreshThread" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "something still paints"
        time.sleep(0.05)


def everything(terminal: int) -> str:
    """What was written to the other end: a terminal gives it in pieces."""
    pieces = []
    while select.select([terminal], [], [], 0.5)[0]:
        pieces.append(os.read(terminal, 100_000))
    return b"".join(pieces).decode()


def test_a_log_line_scrolls_above_the_live_line_of_a_real_terminal(make_collector) -> None:
    primary, secondary = pty.openpty()
    with os.fdopen(secondary, "w") as screen:
        handler = logging.StreamHandler(sys.stderr)
        library = logging.getLogger("a_library")  # with a handler of its own, as Lightning has
        library.addHandler(handler)
        painter = Painter(Console(file=screen, force_terminal=True, width=100), State(1, 2), make_collector().runtime)
        painter.start()
        try:
            assert handler.stream is not sys.stderr
            logging.getLogger("a_library.part").warning("a word in between")
        finally:
            painter.stop()
            library.removeHandler(handler)
        assert handler.stream is sys.stderr
        screen.flush()
        text = everything(primary)
    os.close(primary)
    assert "a word in between" in text
    assert "iteration 1/2" in text


def test_a_long_rollout_gives_a_sign_of_life(make_collector, caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo.callbacks.progress")
    heartbeat = Heartbeat(State(iteration=3, iterations=9), make_collector().runtime, every_s=0.05)
    heartbeat.start()
    time.sleep(0.4)
    heartbeat.stop()
    assert 2 <= sum("iteration 3/9" in record.getMessage() for record in caplog.records) <= 9


def test_what_was_just_logged_is_not_repeated(make_collector, caplog) -> None:
    caplog.set_level(logging.INFO, logger="arpo.callbacks.progress")
    heartbeat = Heartbeat(State(), make_collector().runtime, every_s=5.0)
    heartbeat.start()
    heartbeat.beat()
    heartbeat.stop()
    assert not caplog.records
