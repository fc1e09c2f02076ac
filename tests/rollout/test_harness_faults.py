"""Episodes of a foreign program under fire: it, the engine and the endpoint end at random."""

import asyncio
import os
import random
import signal
import sys
import time
from contextlib import suppress

import psutil
import pytest

from arpo.agent.prompt import Prompt
from arpo.agent.ui_tars import parse_actions
from arpo.endpoint.server import Endpoint
from arpo.envs.fake import FakeDesktop, fake_tasks
from arpo.envs.pool.pool import EnvPool
from arpo.host.processes import LABEL_VARIABLE
from arpo.rollout.episode import EpisodeSpec, Meter, Responder
from arpo.rollout.harness import Command, HarnessPlayer
from arpo.rollout.runtime import EpisodeRunner
from arpo.rollout.settings import RolloutSettings
from arpo.rollout.storage import TrajectoryStore
from tests.inference.scripted import ScriptedEngine
from tests.rollout.support import moody_clicker

SETTINGS = RolloutSettings(group_size=2, max_steps=4, max_context=4000, max_tokens=60, max_attempts=3)
ENVS, LABEL = 8, f"faults-{os.getpid()}"
PROGRAM = """
import base64, http.client, json, os, signal, time
host = os.environ["ARPO_ENDPOINT"].removeprefix("http://")
key = {"Authorization": "Bearer " + os.environ["ARPO_KEY"]}
if int(os.environ["ARPO_SEED"]) % 4 == 0 and os.fork() == 0:  # leaves a child behind that will not go
    os.setsid()
    if int(os.environ["ARPO_SEED"]) % 40 == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
def ask(path, body=None):
    line = http.client.HTTPConnection(host, timeout=60)
    line.request("POST" if body else "GET", path, json.dumps(body) if body else None, key)
    reply = line.getresponse()
    return reply.status, reply.read()
def shown():
    png = base64.b64encode(ask("/screen")[1]).decode()
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + png}}
messages = [{"role": "user", "content": [{"type": "text", "text": os.environ["ARPO_TASK"]}, shown()]}]
while True:
    status, body = ask("/v1/chat/completions", {"model": "policy", "messages": messages})
    text = json.loads(body)["choices"][0]["message"]["content"]
    status, state = ask("/act", {"response": text})
    if status != 200 or json.loads(state)["ended"]: break
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": [shown()]}]
"""


def replayed(trajectory, task):
    """Return what the checker says of a desktop on which the same was done."""
    (desktop := FakeDesktop()).reset(task)
    for action in (each for step in trajectory.steps for each in parse_actions(step.action)):
        desktop.step(action)
    return desktop.evaluate()


def programs():
    """Return the living processes that have the label of this one."""
    found = psutil.process_iter(["environ", "status"])
    ours = (each for each in found if (each.info["environ"] or {}).get(LABEL_VARIABLE) == LABEL)
    return [each for each in ours if each.info["status"] != psutil.STATUS_ZOMBIE]


async def fire(endpoint, counts, generator):
    """End or stop a group of processes about once a second, and end the server now and then."""
    while True:
        await asyncio.sleep(generator.random())
        ours = [process for process in programs() if process.ppid() == os.getpid()]
        if ours and generator.random() < 0.7:
            with suppress(ProcessLookupError, psutil.Error):
                how = generator.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
                os.killpg(generator.choice(ours).pid, how)
                counts["kills"] += 1
        elif generator.random() < 0.1:
            endpoint._server.should_exit = True
            counts["servers"] += 1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("episodes", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_whatever_ends_an_episode_is_a_trajectory_or_dropped_and_leaves_nothing(chat, tmp_path, monkeypatch, episodes):
    monkeypatch.setenv(LABEL_VARIABLE, LABEL)
    engine = ScriptedEngine(chat, moody_clicker(chat), fail_every=61)
    tasks, counts, meter = fake_tasks(8, kinds=["click", "sequence"]), {"kills": 0, "servers": 0}, Meter("train")
    specs = tuple((EpisodeSpec(f"0/{number}/0", tasks[number % 8], number, SETTINGS),) for number in range(episodes))
    harness = Command(argv=[sys.executable, "-S", "-E", "-c", PROGRAM], limit_s=20.0)
    began, store = time.monotonic(), TrajectoryStore(tmp_path)

    async def played():
        pool, endpoint = EnvPool(FakeDesktop, size=ENVS, envs_per_worker=ENVS, backend="thread"), Endpoint()
        await pool.start()
        responder = Responder(engine, chat, Prompt.compact())
        runner = EpisodeRunner(pool, responder, store, SETTINGS, HarnessPlayer(harness, endpoint, responder))
        firing = asyncio.create_task(fire(endpoint, counts, random.Random(3)))
        try:
            return await runner.run(specs, meter, {})
        finally:
            firing.cancel()
            for part in (runner, endpoint, pool):
                await part.close()

    trajectories = [each for (each,) in asyncio.run(played()) if each is not None]
    sys.stderr.write(f"{time.monotonic() - began:.0f} s, {counts}, {meter.retried} retried, {meter.dropped} dropped\n")
    assert len(trajectories) == meter.done == episodes - meter.dropped
    assert programs() == []
    assert set(store.finished(0)) == {each.id for each in trajectories}
    asked = {(request.prompt_ids, request.images) for request in engine.requests}
    for each in trajectories:
        assert each.task_reward == replayed(each, tasks[int(each.id.split("/")[1]) % 8])
        for number in range(len(each.exchanges)):
            ids, pictures = each.context(number)
            assert (ids, tuple(each.screenshots[picture.key] for picture in pictures)) in asked
