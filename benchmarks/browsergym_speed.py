"""Seconds of a step of env=gymnasium beside BrowserGym's own, with and without its extraction, in turns in one run.

    PYTHONPATH=. python benchmarks/browsergym_speed.py [ROUNDS]        # needs uv pip install browsergym-miniwob

Each has an environment of the same page in the same browser. A round is a click beside the button, a move and a key,
by each of the three in turn, so that a busy machine is busy for all of them.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median

from arpo.agent.actions import Action, Click, Hover, Press
from arpo.envs.gymnasium.browsergym import calls_of
from arpo.envs.gymnasium.env import GymnasiumEnv
from arpo.envs.gymnasium.tasks import gymnasium_tasks

PAGE = "browsergym/miniwob.click-test"
ACTIONS = (Click(150, 200), Hover(90, 150), Press("a"))


def own(*, extracting: bool) -> Callable[[Action], None]:
    """Return a step of BrowserGym's environment, with a screenshot in both cases."""
    import gymnasium
    from browsergym.core.action.highlevel import HighLevelActionSet
    from browsergym.core.observation import extract_screenshot

    calls = HighLevelActionSet(["chat", "infeas", "coord"], strict=True).to_python_code
    env = gymnasium.make(PAGE, disable_env_checker=True, use_raw_page_output=not extracting, action_mapping=calls)
    env.reset(seed=1)

    def step(action: Action) -> None:
        seen = env.step(calls_of(action, (0.0, 0.0)))[0]
        if not extracting:
            extract_screenshot(seen["page"])

    return step


def main(rounds: int) -> None:
    ours = GymnasiumEnv(scale=1.5)  # the pixels of its own
    ours.reset(gymnasium_tasks([PAGE], [1])[0])
    steps = {"env=gymnasium": ours.step, "its own": own(extracting=False), "its own, extracting": own(extracting=True)}
    seconds = defaultdict(list)
    for _ in range(rounds):
        for action in ACTIONS:
            for name, step in steps.items():
                began = time.perf_counter()
                step(action)
                seconds[name].append(time.perf_counter() - began)
    base = median(seconds["its own"])
    for name, each in seconds.items():
        print(f"{name:20} {median(each):6.3f} s a step in the median, {median(each) / base:4.2f} of its own")
    ours.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
