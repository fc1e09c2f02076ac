"""Trajectories out of thin air; imports nothing heavy, so that child processes start at once."""

import hashlib
import io
from dataclasses import replace
from typing import Any

from PIL import Image

from arpo.types import Exchange, Outcome, Picture, Step, Trajectory, screenshot_key
from tests.exchanges import in_turn


def make_png(shade: int, size: tuple[int, int] = (4, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(buffer, "PNG")
    return buffer.getvalue()


def make_trajectory(
    id: str = "3/0/1",
    *,
    task_id: str = "task",
    domain: str = "domain",
    task_reward: float = 1.0,
    outcome: Outcome = Outcome.FINISHED,
    steps: int = 2,
    policy_version: int = 7,
    seed: int = 2**63 - 1,
    shade: int = 0,
) -> Trajectory:
    pngs = [make_png(shade + index) for index in range(steps + 1)]  # the last one is the screen after the last step
    keys = [hashlib.sha256(png).hexdigest() for png in pngs]
    return Trajectory(
        id=id,
        sampling="0123456789abcdef",
        task_id=task_id,
        domain=domain,
        instruction="click “red” \ud83d",  # non-ASCII, and half a surrogate pair
        seed=seed,
        **in_turn(
            [Step(key, 4, 4, "Action: wait()\n", "wait()") for key in keys[:-1]],
            # not short in decimal
            *[((1, 2, 3), (4, 151_645), (-0.1 - 0.2, -1e-17 / 3), policy_version)] * steps,
        ),
        outcome=outcome,
        task_reward=task_reward,
        format_reward=0.0,
        screenshots=dict(zip(keys, pngs, strict=True)),
        last_screenshot=keys[-1],
        duration_s=1.5,
    )


def scripted(id: str, task_id: str = "open", **facts: Any) -> Trajectory:
    """A trajectory as a script leaves it: what was said, and no ids."""
    made = replace(make_trajectory(id, task_id=task_id, **facts), instruction="Click on the Save button.")
    return replace(made, steps=tuple(replace(step, exchange=None) for step in made.steps), exchanges=())


def odd_trajectories(id: str) -> list[Trajectory]:
    """Scripted successes of one step that show something else than a screen."""
    good = make_png(200)
    damaged = good[:40] + bytes([good[40] ^ 1]) + good[41:]
    odd = {make_png(0, (600, 2)): (600, 2), make_png(0, (5, 4)): (4, 4), damaged: (4, 4), b"text" + good[-12:]: (4, 4)}
    made = []
    for png, (width, height) in odd.items():
        key = hashlib.sha256(png).hexdigest()
        whole = scripted(id, steps=1)
        step = replace(whole.steps[0], screenshot=key, width=width, height=height)
        made.append(replace(whole, steps=(step,), screenshots={key: png}, last_screenshot=""))
    return made


def foreign(size: tuple[int, int] = (4, 4), image_id: int = 99) -> Trajectory:
    """An episode of an agent that holds two conversations, asks twice, cuts an answer, and shows three pictures.

    Of its exchanges 0, 2, 3 and 4 are trained, with 2, 2, 1 and 2 tokens: 0 → 3 is a path, and 0 → 2 → 4 another one.
    """
    shown = {screenshot_key(png): png for png in (make_png(shade, size) for shade in range(3))}
    one, two, three = (Picture(key, *size) for key in shown)
    rows: list[tuple[Any, ...]] = [
        (None, (1, image_id, 2, image_id, 3), (one, two), (40, 41), (-0.4, -0.5), 6),
        (None, (1, 6), (), (42,), (-0.7,), 6, "stop", False),  # what another model said
        (0, (8,), (), (43, 44, 45), (-0.9, -1.0, -1.1), 7, "stop", True, 2),  # whose last id is behind a stop
        (0, (8,), (), (46,), (-1.2,), 7, "length"),  # asked a second time
        (2, (13, image_id), (three,), (47, 48), (-1.4, -1.5), 8),
        (4, (16,), (), (49,), (-1.7,), 8, "stop", False),  # never arrived
    ]
    acted = [(0, "click(start_box='(1,1)')"), (0, "wait()"), (4, "finished()")]  # two actions at once
    return Trajectory(
        "3/0/2",
        "task",
        "domain",
        "Press “OK”.",
        5,
        tuple(Step(one.key, *size, "as it is", action, exchange=number) for number, action in acted),
        Outcome.FINISHED,
        1.0,
        0.0,
        tuple(Exchange(*row) for row in rows),
        shown,
    )
