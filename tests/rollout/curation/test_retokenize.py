"""Trajectories of another origin, told anew: which ids are trusted, and which are encoded again."""

from dataclasses import replace

import pytest

from arpo.agent.prompt import Prompt
from arpo.rollout.curation.retokenize import retokenize
from tests.rollout.trajectories import scripted


def test_ids_that_an_engine_sampled_stay_as_they_are(chat):
    prompt = Prompt.compact()
    told = retokenize(scripted("0/0/0"), chat, prompt, None)
    cut = chat.encode_response("Action: wait()\n")[:-1]  # without the end of the turn, as when a limit cut it
    first = replace(told.steps[0], response_ids=cut, sampler_logprobs=(-0.5,) * len(cut))
    second = replace(told.steps[1], prompt_ids=chat.next_prompt(cut))
    sampled = replace(told, steps=(first, second))
    assert retokenize(sampled, chat, prompt, None) is sampled


@pytest.mark.parametrize("foreign", ["prompt", "response", "glue"])
def test_ids_of_another_prompt_or_tokenizer_are_not_trusted(chat, foreign):
    prompt = Prompt.compact()
    told = retokenize(scripted("0/0/0"), chat, prompt, None)
    first, second = told.steps
    steps = {
        "prompt": (replace(first, prompt_ids=(1, *first.prompt_ids)), second),
        "response": (replace(first, response_ids=first.response_ids[1:]), second),
        "glue": (first, replace(second, prompt_ids=(*second.prompt_ids, 1))),
    }[foreign]
    assert retokenize(replace(told, steps=steps), chat, prompt, None) == told


def test_ids_that_were_sampled_after_another_image_window_are_not_trusted(chat):
    prompt = Prompt.compact()
    told = retokenize(scripted("0/0/0"), chat, prompt, None)
    steps = [replace(step, sampler_logprobs=(-0.5,) * len(step.response_ids)) for step in told.steps]
    sampled = replace(told, steps=tuple(steps))
    again = retokenize(sampled, chat, prompt, 1)
    assert again == replace(told, image_window=1)
    assert again.steps[0].sampler_logprobs == told.steps[0].sampler_logprobs  # 0: nobody sampled them so
    assert retokenize(again, chat, prompt, 1) is again
