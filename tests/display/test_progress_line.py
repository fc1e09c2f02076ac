"""The words of the progress line, read as a person reads them."""

import io
import re
import time

import pytest
from rich.console import Console

from arpo.display.progress_line import (
    Line,
    State,
    clock,
    evaluation_line,
    iteration_line,
    step_line,
    training_line,
)
from arpo.rollout.meter import Meter


def status(name="", episodes_done=0, episodes_total=0, elapsed_s=0.0, dropped=0, **counts) -> Meter:
    """`episodes_done` ended, of which `dropped` gave no trajectory."""
    done = episodes_done - dropped
    return Meter(name, episodes_total, done, dropped=dropped, started=0.0, ended=elapsed_s, **counts)


ROLLING = status(name="train", episodes_done=16, episodes_total=64, successes=4, steps=40, elapsed_s=8.0)


def rendered(line: Line, width: int = 160) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    console.print(line.table())
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())


@pytest.fixture
def state() -> State:
    state = State(iteration=12, iterations=60)
    state.successes.extend([0.25, 0.75])
    state.durations.extend([10.0, 10.0])
    state.replayed, state.replay_size = 3, 14.0
    return state


def test_while_episodes_run_the_line_counts_them(state: State) -> None:
    said = training_line(state, ROLLING).text
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


def test_an_update_is_not_hidden_by_episodes_of_a_later_iteration(state: State) -> None:
    state.phase = "update and weight sync"
    assert "update and weight sync" in training_line(state, ROLLING).parts


def test_the_line_of_an_iteration_in_a_log_is_complete(state: State) -> None:
    state.phase = "closing"
    assert iteration_line(state, 9.5) == (
        "iteration 12/60 · success 75 %, last 2: 50 % · replay 14, 3 injected · 9.5 s · 8:00 to go"
    )


def test_the_time_to_go_counts_the_evaluations_that_are_still_to_come(state: State) -> None:
    state.evaluations_left, state.evaluation_s = 2, 45.0
    # after the update of iteration 12: 48 iterations of 10 s, and two evaluations of 45 s
    state.phase, state.started = "closing", time.monotonic()
    assert state.to_go() == "9:30 to go"
    # before it: one iteration more
    state.phase = "starting"
    assert state.to_go() == "9:40 to go"


def test_during_the_last_evaluation_its_time_runs_down(state: State) -> None:
    state.iteration, state.phase = 60, "closing"
    state.evaluations_left, state.evaluation_s = 1, 48.0
    state.started = time.monotonic() - 20
    assert state.to_go() == "0:28 to go"
    state.started = time.monotonic() - 60  # longer than the one before: nobody knows
    assert state.to_go() is None


def test_the_bar_counts_iterations_and_the_episodes_of_the_running_rollout(state: State) -> None:
    def share(iteration: int, done: int, phase: str = "starting") -> float | None:
        rollout = status(name="train", episodes_done=done, episodes_total=64)
        return training_line(State(iteration=iteration, iterations=4, phase=phase), rollout).share

    # iteration 2 of 4 with half of its episodes: 1.5 of 4
    assert [share(1, 0), share(2, 32), share(2, 64, "closing")] == [0.0, 0.375, 0.5]


def test_the_line_stays_one_line_in_a_narrow_terminal(state: State) -> None:
    shown = rendered(training_line(state, ROLLING), width=60)
    assert shown.count("\n") == 1
    assert "rollout 16/64" in shown
    assert re.match("[━╸╺]{10} ", shown)  # the words give way, not the bar
    assert len(shown.rstrip()) == 60


def test_outside_of_a_training_the_episodes_alone_are_counted() -> None:
    assert evaluation_line(status()) == Line(["starting"])
    evaluating = status(
        name="test", episodes_done=2, episodes_total=8, successes=1, steps=10, elapsed_s=4.0, dropped=1
    )
    # 2 episodes in 4 s: the 6 that are left take 12
    said = ["evaluation test 2/8", "success 50 %", "0:12 to go", "2.5 steps/s", "1 episode lost"]
    assert evaluation_line(evaluating) == Line(said, 0.25)
    fresh = status(name="train", episodes_total=8)  # a list of tasks may have any name
    assert evaluation_line(fresh) == Line(["evaluation train 0/8"], 0.0)


def test_a_warm_start_counts_its_steps() -> None:
    assert step_line(35, 140, 0.5123, elapsed_s=10.0) == Line(["step 35/140", "loss 0.512", "0:30 to go"], 0.25)
    assert step_line(0, 140, None, elapsed_s=10.0) == Line(["step 0/140"], 0.0)
    assert step_line(3, None, None, elapsed_s=10.0) == Line(["step 3/?"])


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (7.4, "0:07"), (754, "12:34"), (11_100, "3:05:00")])
def test_durations_are_written_as_people_read_them(seconds: float, text: str) -> None:
    assert clock(seconds) == text
