"""The contract of a desktop as executable checks: one for the fake, the browser and the real desktops."""

from collections.abc import Callable, Sequence

from arpo.agent.actions import Action, Call, Drag, Finished, Hover, Press, Scroll, Wait
from arpo.envs.protocol import DesktopEnv, SolvableEnv
from arpo.envs.screenshot import check_screenshot
from arpo.errors import ConfigError, EnvError
from arpo.types import Observation, Task


class ContractError(AssertionError):
    """Raised when an environment breaks the contract of `DesktopEnv`, with a line for each broken clause."""


def check_env(env: DesktopEnv, task: Task, *, deterministic: bool = True, max_solution_steps: int = 50) -> None:
    """Check an environment that was never reset from its first call to its last; it is closed afterwards.

    Two resets must show the same first observation where it is `deterministic`.
    """
    broken: list[str] = []
    try:
        broken += _must_refuse("before reset", env, task=None)
        broken += _episode_violations(env, task, deterministic=deterministic, max_solution_steps=max_solution_steps)
    finally:
        env.close()
    env.close()
    broken += _must_refuse("after close", env, task=task)
    _raise_if(broken)


def check_episode(env: DesktopEnv, task: Task, *, deterministic: bool = True, max_solution_steps: int = 50) -> None:
    """Check the clauses of one task as `check_env` does; the environment stays open."""
    _raise_if(_episode_violations(env, task, deterministic=deterministic, max_solution_steps=max_solution_steps))


def _raise_if(broken: Sequence[str]) -> None:
    if broken:
        lines = "\n".join(f"- {clause}" for clause in broken)
        raise ContractError(f"the environment breaks the DesktopEnv contract:\n{lines}")


def _episode_violations(env: DesktopEnv, task: Task, *, deterministic: bool, max_solution_steps: int) -> list[str]:
    """Return the clauses that do not hold for this task: first observation, steps, evaluation, reset, solution."""
    first = env.reset(task)
    broken = _observation_violations("reset", first)
    if not (first.instruction or task.instruction):
        broken.append("reset gives no instruction, and the task has none")
    x, y = first.width // 2, first.height // 2
    harmless = (Wait(), Hover(x, y), Scroll("down", x, y), Press("shift"), Call("no.such_function", {"text": "a"}))
    for action in (*harmless, Drag(None, None, x, y), Finished()):
        try:
            result = env.step(action)
        except Exception as error:  # noqa: BLE001 - it is the environment's own, and named
            return [*broken, f"step({action}) raises {type(error).__name__}: {error}; every action is allowed"]
        broken += _observation_violations(f"step({action})", result.observation)
        if (result.observation.width, result.observation.height) != (first.width, first.height):
            broken.append(f"step({action}) changed the screen size")
        if result.terminated or result.truncated:
            break
    broken += _reward_violations("evaluate", env.evaluate())
    if env.reset(task) != first and deterministic:
        broken.append("a second reset of the same task gives another first observation")
    if isinstance(env, SolvableEnv):
        broken += _solution_violations(env, env, max_solution_steps)
    return broken


def _observation_violations(what: str, observation: Observation) -> list[str]:
    try:
        check_screenshot(observation)
    except EnvError as error:
        return [f"{what}: {error}"]
    return []


def _reward_violations(what: str, reward: float) -> list[str]:
    if isinstance(reward, float) and 0.0 <= reward <= 1.0:
        return []
    return [f"{what} gives {reward!r}, not a float in [0, 1]"]


def _solution_violations(env: DesktopEnv, solver: SolvableEnv, max_steps: int) -> list[str]:
    try:
        solution = solver.solve()
    except ConfigError:
        return []  # an environment may say that it has no script for this task
    taken: list[Action] = []
    for action in solution:
        taken.append(action)
        result = env.step(action)
        if result.terminated or result.truncated or len(taken) == max_steps:
            break
    reward = env.evaluate()
    if reward <= 0.5:
        return [f"solve() ends with reward {reward} after {len(taken)} actions: {taken}"]
    return _reward_violations("evaluate after solve()", reward)


def _must_refuse(when: str, env: DesktopEnv, *, task: Task | None) -> list[str]:
    calls: dict[str, Callable[[], object]] = {"step": lambda: env.step(Wait()), "evaluate": env.evaluate}
    if task is not None:
        calls["reset"] = lambda: env.reset(task)
    found = {name: _instead_of_env_error(call) for name, call in calls.items()}
    return [f"{name} {when} does not raise EnvError{but}" for name, but in found.items() if but is not None]


def _instead_of_env_error(call: Callable[[], object]) -> str | None:
    """Return the end of a sentence about a call that raises no EnvError: its own error; None where it raises one."""
    try:
        call()
    except EnvError:
        return None
    except Exception as error:  # noqa: BLE001 - likewise
        return f", but {type(error).__name__}: {error}"
    return ""
