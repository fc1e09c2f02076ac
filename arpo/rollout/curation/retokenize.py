"""Trajectories of another origin, encoded as this run's engine would have read and sampled them."""

import logging
from dataclasses import replace

from arpo.agent.grammar import GRAMMARS
from arpo.agent.matching import same_kind, same_point
from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_actions
from arpo.envs.screenshot import check_screenshot
from arpo.errors import ActionParseError, ArpoError, EnvError
from arpo.models.tokenization import ChatTokenizer, trained_spans
from arpo.rollout.runtime import RolloutRuntime
from arpo.rollout.storage import TrajectoryStore
from arpo.types import Observation, Step, Trajectory

log = logging.getLogger(__name__)

NEAR = 2.0
"""Pixels that a point may lie beside where it was performed: points are rounded on their way to the screen."""


class RetokenizationError(ArpoError, ValueError):
    """A trajectory that a run's policy could not have said; the message ends a sentence about several of them."""


def retokenize_for(runtime: RolloutRuntime, trajectory: Trajectory, store: TrajectoryStore) -> Trajectory:
    """Return a trajectory as the engine of a run would have read and sampled it.

    Args:
        runtime: Of the run.
        trajectory: Without screenshots.
        store: Has its screenshots; one that is lost is not looked at.

    Raises:
        RetokenizationError: If it shows a picture that is no screenshot, if its responses name other points to this
            policy than they clicked, or if it is longer than a context.
    """
    _check_pictures(trajectory, store)
    _check_points(trajectory, runtime.chat, runtime.prompt)
    retokenized = retokenize(trajectory, runtime.chat, runtime.prompt, runtime.settings.image_window)
    if longest_context(retokenized, runtime.chat) > (room := runtime.settings.max_context):
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
            if same_kind(own, done) and not same_point(frame.to_screen(own), done, tolerance=NEAR):
                raise RetokenizationError("name other points than they clicked, as a model with other pictures does")


def retokenize(trajectory: Trajectory, chat: ChatTokenizer, prompt: Prompt, image_window: int | None) -> Trajectory:
    """Return a trajectory with the ids that this run's engine would have read and sampled.

    Ids that are already those stay, with their log-probabilities. Otherwise the responses are encoded anew from
    their text: those of a script, or of a policy with another tokenizer, system prompt, template or image window.
    No engine sampled those ids after what this run's engine reads, and their log-probabilities are 0.
    """
    prompt_ids = chat.first_prompt(prompt.messages(trajectory.instruction))
    if trajectory.image_window == image_window and _matches_prompt(trajectory, chat, prompt_ids):
        return trajectory
    steps: list[Step] = []
    for step in trajectory.steps:
        ids = chat.encode_response(step.response)
        patch_ids = chat.encode_response(step.patch) if step.patch else ()
        encoded = replace(step, prompt_ids=prompt_ids, response_ids=ids, patch_ids=patch_ids)
        steps.append(replace(encoded, sampler_logprobs=(0.0,) * len(ids)))
        prompt_ids = chat.next_prompt(encoded.history_ids)
    return replace(trajectory, steps=tuple(steps), image_window=image_window)


def _matches_prompt(trajectory: Trajectory, chat: ChatTokenizer, prompt_ids: tuple[int, ...]) -> bool:
    for step in trajectory.steps:
        if step.prompt_ids != prompt_ids or chat.decode(step.response_ids) != step.response:
            return False
        if step.patch and chat.encode_response(step.patch) != step.patch_ids:
            return False
        prompt_ids = chat.next_prompt(step.history_ids)
    return True


def longest_context(trajectory: Trajectory, chat: ChatTokenizer) -> int:
    """Return the tokens of the longest context of a trajectory: of several, not always that of the last step."""
    window = trajectory.image_window
    lengths = []
    for _, end in trained_spans(trajectory):
        steps = trajectory.steps[:end]
        prompts = chat.windowed([step.prompt_ids for step in steps], window)
        responses = [*(step.history_ids for step in steps[:-1]), steps[-1].response_ids]
        ids = [id for prompt, own in zip(prompts, responses, strict=True) for id in (*prompt, *own)]
        shown = steps if window is None else steps[-window:]
        lengths.append(chat.context_length(ids, [(step.width, step.height) for step in shown]))
    return max(lengths)
