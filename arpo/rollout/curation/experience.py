"""Trajectories of another origin: successes of other runs or scripts, encoded as this run would sample them."""

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from arpo.agent.matching import same_point
from arpo.agent.prompt import GRAMMARS, Prompt
from arpo.agent.ui_tars import parse_actions
from arpo.envs.screenshot import check_screenshot
from arpo.errors import ActionParseError, ArpoError, ConfigError, EnvError
from arpo.models.tokenization import ChatTokenizer, tokenize
from arpo.rollout.conversation import with_answers
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Exchange, Group, Observation, Task, Trajectory

log = logging.getLogger(__name__)

SPLIT = "pool"
"""The part of a run's trajectory store that holds them."""
NEAR = 2.0
"""Pixels that a point may lie beside where it was performed: points are rounded on their way to the screen."""


class RetokenizationError(ArpoError, ValueError):
    """A trajectory that a run's policy could not have said; the message ends a sentence about several of them."""


def retokenize_for(runtime: RolloutRuntime, trajectory: Trajectory, store: TrajectoryStore) -> Trajectory:
    """Return a trajectory as the engine of a run would have read and sampled it.

    `store` has its screenshots; one that is lost is not looked at.

    Raises:
        RetokenizationError: If it is of a foreign agent, if it has no step, if it shows a picture that is no
            screenshot, if its responses name other points to this policy than they clicked, or if it is
            longer than a context.
    """
    if trajectory.exchanges and not trajectory.has_a_step_an_exchange:
        raise RetokenizationError("are of an agent whose requests are not steps of ours")
    if not trajectory.steps:
        raise RetokenizationError("have no step")
    _check_pictures(trajectory, store)
    _check_points(trajectory, runtime.chat, runtime.prompt)
    retokenized = retokenize(trajectory, runtime.chat, runtime.prompt, runtime.settings.image_window)
    if max(map(len, tokenize(retokenized, runtime.chat))) > (room := runtime.settings.max_context):
        raise RetokenizationError(f"are longer than max_context={room}")
    return retokenized


def _check_pictures(trajectory: Trajectory, store: TrajectoryStore) -> None:
    if store.lost_screenshots(trajectory):
        return  # reported where they are learned from
    shown = store.load_screenshots(trajectory).screenshots
    try:
        for step in trajectory.steps:
            check_screenshot(Observation(shown[step.screenshot], step.width, step.height))
    except EnvError as error:
        log.warning("trajectory %s of task %s: %s", trajectory.id, trajectory.task_id, error)
        raise RetokenizationError("show pictures that are no screenshots") from error


def _check_points(trajectory: Trajectory, chat: ChatTokenizer, prompt: Prompt) -> None:
    """Check that responses mean to this policy what they once did: pixels of one picture are none of another."""
    for step in trajectory.steps:
        if step.parse_error or not step.action:
            continue
        try:
            said = GRAMMARS[prompt.grammar].read(step.response, prompt.functions)
        except ActionParseError as error:
            raise RetokenizationError(f"are not written in the prompt's grammar, {prompt.grammar}") from error
        try:
            performed = parse_actions(step.action)
        except ActionParseError as error:
            raise RetokenizationError("have an action that cannot be read") from error
        frame = chat.family.frame((step.width, step.height), chat.model_size(step.width, step.height))
        for own, done in zip(said, performed, strict=False):  # an episode may end before the last
            if own.kind == done.kind and not same_point(frame.to_screen(own), done, tolerance=NEAR):
                raise RetokenizationError("name other points than they clicked, as a model with other pictures does")


def retokenize(trajectory: Trajectory, chat: ChatTokenizer, prompt: Prompt, image_window: int | None) -> Trajectory:
    """Return a trajectory with the ids that this run's engine would have read and sampled.

    Ids that are already those stay, with their log-probabilities. Otherwise the responses are encoded anew from
    their text: those of a script, or of a policy with another tokenizer, system prompt, template or image window.
    No engine sampled those ids after what this run's engine reads, and their log-probabilities are 0.
    """
    first, given = chat.first_prompt(prompt.messages(trajectory.instruction)), trajectory.exchanges
    again = partial(with_answers, trajectory, chat=chat, first_prompt=first, image_window=image_window)
    texts = [chat.decode(each.response_ids) for each in given]
    if given and texts == [step.response for step in trajectory.steps] and again(given) == trajectory:
        return trajectory
    versions = [each.policy_version for each in given] or [0] * len(trajectory.steps)
    answers = [
        Exchange(None, (), (), ids := chat.encode_response(step.response), (0.0,) * len(ids), version)
        for step, version in zip(trajectory.steps, versions, strict=True)
    ]
    return again(answers)


class ExperiencePool:
    """Directories of trajectories, of which a run takes the successes at its tasks (DART, arXiv 2509.23866).

    They are copied into the run's own trajectory store once, under ids of their own: from there on the run depends on
    nothing outside its folder, and a checkpoint names them like any other trajectory.

    Args:
        directories: Trajectory stores: `trajectories` of another run or of an evaluation, `demonstrations` of a warm
            start. The successes of later directories, and in one of them those of later iterations, are the newer.
        tasks: What the run learns.
    """

    def __init__(self, directories: Sequence[str | Path], tasks: Sequence[Task]) -> None:
        self.directories = [Path(directory) for directory in directories]
        self.tasks = list(tasks)

    def move_into(self, runtime: RolloutRuntime, worthy: Callable[[Trajectory], bool], most: int) -> Iterator[Group]:
        """Copy worthy trajectories into the store of a run, and yield them, a group a task, without screenshots.

        Of each task the newest `most` are taken.
        """
        if not self.directories:
            log.warning("the experience pool is empty: name directories of trajectories, or choose another replay")
        found = self._newest(worthy, runtime, most)
        for number, task in enumerate(self.tasks):
            members = [
                _admitted(trajectory, store, runtime, id=f"{SPLIT}-0/{number}/{member}")
                for member, (trajectory, store) in enumerate(found[task.id])
            ]
            if members:
                yield Group(task, tuple(members))
        solved = [len(entries) for entries in found.values() if entries]
        log.info("the experience pool has %d successes at %d of %d tasks", sum(solved), len(solved), len(found))

    def _newest(
        self, worthy: Callable[[Trajectory], bool], runtime: RolloutRuntime, most: int
    ) -> dict[str, deque[tuple[Trajectory, TrajectoryStore]]]:
        """Return the newest successes of each task, oldest first, with the store that has their screenshots."""
        found = {task.id: deque[tuple[Trajectory, TrajectoryStore]](maxlen=most) for task in self.tasks}
        most_steps = {task.id: task.max_steps or runtime.settings.max_steps for task in self.tasks}
        outside: Counter[str] = Counter()
        for directory in self.directories:
            store = TrajectoryStore(directory)
            if not store.iterations():
                raise ConfigError(
                    f"directories: {store.root} holds no trajectories; name the trajectories/ of a run or of an "
                    "evaluation, or the demonstrations/ of a warm start"
                )
            for trajectory in store.read_all():
                if trajectory.task_id not in found or not worthy(trajectory):
                    continue
                if len(trajectory.steps) > most_steps[trajectory.task_id]:  # this run's policy could never do the same
                    outside["are longer than max_steps"] += 1
                    continue
                try:
                    found[trajectory.task_id].append((retokenize_for(runtime, trajectory, store), store))
                except RetokenizationError as error:
                    outside[str(error)] += 1
        for reason, count in outside.items():
            log.warning("%d successes %s and stay outside the pool", count, reason)
        return found


def _admitted(trajectory: Trajectory, origin: TrajectoryStore, runtime: RolloutRuntime, *, id: str) -> Trajectory:
    """Copy a trajectory into the run's store under a new id, and return it without screenshots."""
    whole = origin.load_screenshots(trajectory)
    # Its versions are those of another run: to this one it is as old as its first policy.
    exchanges = tuple(replace(each, policy_version=0) for each in whole.exchanges)
    runtime.store.write(replace(whole, id=id, exchanges=exchanges))
    return replace(whole, id=id, exchanges=exchanges, screenshots={})
