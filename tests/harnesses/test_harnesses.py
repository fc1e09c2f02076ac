"""Published harnesses, unmodified: each plays an episode, whose record is what the engine got and gave."""

import io
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arpo.endpoint.rendering import Renderer
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.screenshot import measured
from arpo.rollout.episode import EpisodeSpec
from arpo.rollout.harness import Command
from arpo.rollout.settings import RolloutSettings
from arpo.types import Outcome
from tests.endpoint.episodes import check_record
from tests.endpoint.serving import Watched
from tests.endpoint.test_rendering import json_call, thinking, xml_call
from tests.harnesses.make import environment, requirement
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import Programs
from tests.rollout.test_harness import play

pytestmark = pytest.mark.long
AGENTS = Path(__file__).parent / "agents"
SETTINGS = RolloutSettings(group_size=2, max_steps=12, max_context=50_000, max_tokens=500, temperature=0.7)
SPEC = EpisodeSpec("0/0/0", fake_tasks(1, seed=3, kinds=["type"])[0], 5, SETTINGS)


def calls(number, renderer, prompt, name, **arguments):
    """Call a tool; at the end, the one with which the harness ends, if it has one."""
    call = xml_call if renderer.thinks else json_call
    if name:
        return call(name, **arguments)
    ends = {"final_answer": {"answer": "Done."}, "final_result": {"summary": "Done."}, "submit": {"answer": "Done."}}
    return next((call(end, **given) for end, given in ends.items() if f'"{end}"' in prompt), "Done.")


def own_calls(number, renderer, prompt, name, **arguments):
    return json_call(name, **arguments) if name else "Done."


def code(number, renderer, prompt, name, **arguments):
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    said = f"{name}({given})" if name else "final_answer('Done.')"
    return f"Thought: I go on.\n<code>\n{said}\n</code>"


def by_schema(number, renderer, prompt, name, **arguments):
    said = {"evaluation_previous_goal": "Well.", "memory": "None.", "next_goal": "On."}
    action = {f"desktop_{name}": arguments} if name else {"done": {"text": "Done.", "success": True}}
    return json.dumps(said | {"action": [action]})


def browser_gym(number, renderer, prompt, name, x=0, y=0, text=""):
    """Answer as AgentLab asks for, with a call of BrowserGym's."""
    calls = {
        "click": f"mouse_click({x}, {y})",
        "type_text": f"keyboard_type({text!r})",
        "": "send_msg_to_user('Done.')",
    }
    return f"<action>\n{calls[name]}\n</action>"


def ui_tars(number, renderer, prompt, name, x=0, y=0, text=""):
    """Answer as UI-TARS does; wait twice at first, so that the window of screenshots moves, and say nonsense."""
    if number <= 4:
        return ("I would rather not.", "Thought: I wait.\nAction: wait()")[number % 2]
    point = f"start_box='<|box_start|>({x},{y})<|box_end|>'"
    action = {"click": f"click({point})", "type_text": f"type(content='{text}')", "": "finished(content='Done.')"}
    return f"Thought: I go on.\nAction: {action[name]}"


@dataclass(frozen=True)
class Tried:
    agent: str
    environment: str
    says: Callable = calls
    options: tuple[str, ...] = ()
    templates: tuple[str, ...] = ("qwen3_vl", "qwen3_5")
    """Those that take its messages: Qwen3.5's takes none of the system behind the first."""
    desktop: type = FakeDesktop

    @property
    def argv(self):
        """Return the program, or skip where its environment is not made."""
        place = environment(self.environment)
        if not place.is_dir():
            pytest.skip(f"no environment of {self.environment}: python -m tests.harnesses.make {self.environment}")
        if requirement(self.environment).suffix == ".json":
            for each in ("door", self.agent):  # modules are looked for beside the one that imports them
                shutil.copy(AGENTS / f"{each}.mjs", place)
            return [shutil.which("node"), str(place / f"{self.agent}.mjs")]
        return [str(place / "bin" / "python"), str(AGENTS / f"{self.agent}.py"), *self.options]


HARNESSES = [
    Tried("openai_chat", "openai"),
    Tried("openai_responses", "openai"),
    Tried("anthropic_messages", "anthropic"),
    Tried("openai_agents", "openai-agents"),
    Tried("smolagents_code", "smolagents", code),
    Tried("smolagents_tools", "smolagents"),
    Tried("langgraph_react", "langgraph"),
    Tried("pydantic_ai_agent", "pydantic-ai", options=("openai-chat",), templates=("qwen3_vl",)),
    Tried("pydantic_ai_agent", "pydantic-ai", options=("openai-responses",)),
    Tried("inspect_react", "inspect-ai", options=("openai",)),
    Tried("inspect_react", "inspect-ai", options=("anthropic",)),
    Tried("strands_agent", "strands"),
    Tried("qwen_agent_calls", "qwen-agent", own_calls),
    Tried("ai_sdk", "ai"),
    Tried("openai_agents_js", "openai-agents-js"),
    Tried("browser_use_actions", "browser-use", by_schema),
    Tried("agentlab_visual", "agentlab", browser_gym),
    Tried("ui_tars", "openai", ui_tars),
    Tried("ui_tars", "openai", ui_tars, desktop=Programs, options=("programs",)),
]


CASES = ("qwen3_vl template", "qwen3_5 template", "qwen3_5 verbatim")
"""A chat template, and the history of thoughts; the first has none."""


def field_of(png):
    """Return the middle of the white field on a screenshot."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    rows, columns = np.nonzero((pixels == 255).all(axis=-1))
    return round(columns.mean()), round(rows.mean())


def model(chat, tried, desktop, change, clicks=0):
    """Return an engine that clicks the field, types the word in pieces, and says that it is done."""
    renderer = Renderer(chat)

    def respond(request):
        scene, state, prompt = desktop._scene, desktop._state, chat.decode(request.prompt_ids)
        if scene.instruction not in prompt:  # such as Inspect's, which finds out whether there is a model
            return thinking(renderer, "Hello, world.")
        left = scene.text.removeprefix(state.text)
        does = {"name": "type_text", "text": left[:1]} if left else {"name": ""}
        if not state.focused or len(engine.requests) <= clicks:
            shown = [png for png in request.images if measured(png) == (112, 84)]  # a browser's are of its page
            x, y = field_of(shown[-1]) if shown else scene.field.center
            does = {"name": "click", "x": x, "y": y}
        return thinking(renderer, tried.says(len(engine.requests), renderer, prompt, **does))

    engine = ScriptedEngine(chat, respond, change=change)
    return engine


@pytest.mark.timeout(240)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tried", HARNESSES, ids=lambda tried: "-".join((tried.agent, *tried.options)))
def test_a_harness_solves_its_task_and_its_record_is_that_of_the_engine(chats, table, caplog, tried, case):
    template, history = case.split()
    if template not in tried.templates:
        pytest.skip("the template takes no message of the system behind the first, and the harness sends some")
    chat, endpoint, desktop, heard = chats[template], Watched(), tried.desktop(), []
    engine = model(chat, tried, desktop, lambda response: heard.append(response) or response)
    agent = Command(argv=tried.argv, history=history, limit_s=200)
    with caplog.at_level(logging.INFO):
        trajectory = play(chat, agent, spec=SPEC, desktop=desktop, engine=engine, endpoint=endpoint)
    assert "the agent of episode" not in caplog.text
    assert (trajectory.outcome, trajectory.task_reward) == (Outcome.FINISHED, 1.0)
    check_record(trajectory, list(zip(engine.requests, heard, strict=True)), chat)
    assert all(each.trained for each in trajectory.exchanges)
    table.setdefault((tried.agent, *tried.options), {}).update(cells(tried, case, trajectory, endpoint))


LEFT_OUT = ("ui_tars", "browser_use_actions", "agentlab_visual", "smolagents_tools")
MANY = [tried for tried in HARNESSES if tried.agent not in LEFT_OUT]
MANY = list({tried.environment: tried for tried in MANY}.values())
EXCHANGES, AT_LEAST, CLICKS = int(os.environ.get("ARPO_EXCHANGES", "10_000")), 6, 60


@pytest.mark.timeout(3 * 3600)
def test_of_ten_thousand_exchanges_of_many_harnesses_each_is_what_the_engine_got_and_gave(chats):
    """Play long episodes until there are so many exchanges; `ARPO_EXCHANGES` says how many."""
    there = [tried for tried in MANY if environment(tried.environment).is_dir()]
    if len(there) < AT_LEAST:
        pytest.skip(f"{len(there)} environments of {AT_LEAST}: python -m tests.harnesses.make")
    settings = replace(SETTINGS, max_steps=CLICKS + 10)
    chat, counts = chats["qwen3_vl"], Counter()
    while counts.total() < EXCHANGES:
        tried = min(there, key=lambda each: counts[each.agent])
        spec, desktop, heard = replace(SPEC, settings=settings, seed=counts.total()), tried.desktop(), []
        engine = model(chat, tried, desktop, lambda response, heard=heard: heard.append(response) or response, CLICKS)
        made = play(
            chat,
            Command(argv=tried.argv, limit_s=600, max_pictures=CLICKS + 20),
            spec=spec,
            desktop=desktop,
            engine=engine,
        )
        check_record(made, list(zip(engine.requests, heard, strict=True)), chat)
        counts[tried.agent] += len(made.exchanges)
    assert len(counts) >= AT_LEAST


def cells(tried, case, trajectory, endpoint):
    """Return what the table says of an episode, by title."""
    asked = [(path.removeprefix("/v1/"), json.loads(body)) for path, body in endpoint.seen]
    counts, exchanges = endpoint.counters(), len(trajectory.exchanges)
    pictures = max(len(trajectory.context(number)[1]) for number in range(exchanges))
    version = re.search(r'"?([@\w/-]+)[][\w]*(?:==|": ")([\d.]+)', requirement(tried.environment).read_text("utf-8"))
    ignored = sorted(re.findall(r"harness/unhonoured_(\S+)", " ".join(counts)))
    return {
        "Agent": " ".join((tried.agent, *tried.options)),
        "Harness": " ".join(version.groups()),
        "Dialect": ", ".join(sorted({path for path, _ in asked})),
        "Pictures": f"up to {pictures}" if pictures else "no",
        "Streamed": "yes" if any(body.get("stream") for _, body in asked) else "no",
        "Exchanges": str(exchanges),
        case: f"{int(counts['harness/continued'])} of {exchanges - 1}",
        "Without effect": ", ".join(ignored) or "–",
    }
