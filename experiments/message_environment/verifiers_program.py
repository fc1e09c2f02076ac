"""An episode of a Verifiers taskset as a program of `harness=command`, for an environment that has `verifiers`.

`python verifiers_program.py TASKSET`, by the id of the taskset, such as the name of an installed package.
"""

import asyncio
import json
import os
import sys
import urllib.request

import verifiers.v1 as vf


async def main(taskset: str) -> float:
    """Play the task of this episode's number and return its reward."""
    # Where its harness runs, and which; docker for one that runs what the model writes, such as the usual one.
    agent = {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}}
    env = vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset={"id": taskset}, agent=agent))
    task = next(iter(env.taskset.skip(int(os.environ["ARPO_TASK"])).take(1)))
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(os.environ["ARPO_MODEL"], client))
    if not episode.ok:
        raise RuntimeError([error.message for trace in [episode, *episode.traces] for error in trace.errors])
    return episode.traces[0].reward


def judge(reward: float) -> None:
    """Say what the episode is worth."""
    body = json.dumps({"action": f"type(content='{reward}')"}).encode()
    head = {"Authorization": f"Bearer {os.environ['ARPO_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{os.environ['ARPO_ENDPOINT']}/act", body, head)
    urllib.request.urlopen(request, timeout=60).close()


if __name__ == "__main__":
    judge(asyncio.run(main(sys.argv[1])))
