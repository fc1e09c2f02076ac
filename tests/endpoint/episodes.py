"""An episode of a foreign agent with a scripted engine, and the check of its record against what the engine got."""

from itertools import count

import pytest

from arpo.endpoint.rendering import Renderer
from arpo.endpoint.session import Budgets, Session
from arpo.inference.engine import Response, Sampling
from arpo.models.tokenization import tokenize
from arpo.types import Outcome, Trajectory, screenshot_key
from tests.endpoint.test_rendering import said
from tests.endpoint.test_splicing import drifting

PLENTY = Budgets(answers=1000, tokens=10**6)


def check_record(made, heard, chat):
    """Check a trajectory against the requests that an engine got, in order, and its responses."""
    for number, ((request, response), exchange) in enumerate(zip(heard, made.exchanges, strict=True)):
        ids, pictures = made.context(number)
        assert ids == request.prompt_ids
        assert [picture.key for picture in pictures] == [screenshot_key(png) for png in request.images]
        assert (exchange.response_ids, exchange.sampler_logprobs) == (response.token_ids, response.logprobs)
        assert (exchange.finish, exchange.policy_version) == (response.finish_reason, response.policy_version)
    assert all(screenshot_key(png) == key for key, png in made.screenshots.items())
    # Each log-probability is the only one of its value: those in the sequences are those that are trained, once.
    trained = [each for tokens in tokenize(made, chat) for each in tokens.sampler_logprobs.tolist()]
    wanted = [each for said in made.exchanges for each in said.sampler_logprobs[: len(said.trained_ids)]]
    assert sorted(trained) == pytest.approx(sorted(wanted))


class Episode:
    """A session and a scripted engine, which remembers each request and its response by the number of the exchange."""

    def __init__(self, chat, renderer=None, *, seed=7, max_tokens=500, budgets=PLENTY, max_context=10**5, **options):
        renderer, options = renderer or Renderer(chat), options | {"budgets": budgets, "max_context": max_context}
        sampling = Sampling(temperature=0.8, max_tokens=max_tokens)
        self.session = Session("0/1/2", renderer, chat, seed=seed, sampling=sampling, **options)
        self.chat, self.renderer, self.numbers, self.heard = chat, renderer, count(), []

    def response(self, text, *, ids=None, ended=True):
        ids = (*(drifting(self.chat, text) if ids is None else ids), *([self.chat.end_of_turn_id] if ended else []))
        logprobs = tuple(-1e-4 * next(self.numbers) for _ in ids)
        return Response(ids, logprobs, "stop" if ended else "length", policy_version=3)

    def record(self, turn, text, **options):
        response = self.response(text, **options)
        answer = self.session.record(turn, response)
        self.heard.append((turn, response))
        return answer

    def answer(self, asked, *texts, deliver=True, **options):
        """Answer a request, and return its turns and the messages that the agent has of it."""
        turns = self.session.open(asked)
        answers = [self.record(turn, text, **options) for turn, text in zip(turns, texts, strict=True)]
        if deliver:
            self.session.deliver(turns)
        return turns, [said(*answer.parts()) for answer in answers]

    def trajectory(self):
        """Check the whole record against what the engine got and sampled, and return it."""
        exchanges, ended = (
            self.session.close(),
            {"outcome": Outcome.FINISHED, "task_reward": 1.0, "format_reward": 0.0},
        )
        ended |= {"exchanges": exchanges, "screenshots": self.session.screenshots}
        made = Trajectory("0/1/2", "t", "d", "", 7, (), **ended)
        check_record(made, [(turn.request, response) for turn, response in self.heard], self.chat)
        return made
