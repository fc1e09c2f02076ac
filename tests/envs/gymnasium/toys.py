"""Tiny environments that are registered with Gymnasium as `tests.envs.gymnasium.toys:arpo/NAME`."""

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text

SIDE = 20


def pixels(place: int, shade: int = 0) -> np.ndarray:
    picture = np.full((SIDE, 2 * SIDE, 3), shade, dtype=np.uint8)
    picture[:, 4 * place : 4 * place + 4] = 255
    return picture


class Corridor(gymnasium.Env):
    """A walk to the right end, for 0.5 there and -0.1 for each step before; the seed says where it begins."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = Dict({"mission": Text(64)})
    action_space = Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.place = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(4))
        return {"mission": f"Walk right, from {self.place}."}, {}

    def step(self, action):
        self.place = max(0, self.place + 2 * action - 1)
        there = self.place == 5
        return {"mission": ""}, 0.5 if there else -0.1, there, False, {}

    def render(self):
        return pixels(self.place)


class Dial(gymnasium.Env):
    """A box as its action, and a picture as its observation; every step is worth what was dialled, or nothing."""

    observation_space = Box(0, 255, (SIDE, 2 * SIDE, 3), np.uint8)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return pixels(0, seed % 200), {}

    def step(self, action):
        if action[0] == -1.0:
            raise RuntimeError("it is broken")
        reward = None if action[0] == -0.75 else float(action[0]) if abs(action[0]) < 0.9 else float("nan")
        return pixels(1), reward, bool(action[0] > 0.5), False, {}


class Blind(Dial):
    """An environment without any picture."""

    observation_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        return 1, {}


for kind in (Corridor, Dial, Blind):
    gymnasium.register(f"arpo/{kind.__name__}-v0", kind, max_episode_steps=6)
