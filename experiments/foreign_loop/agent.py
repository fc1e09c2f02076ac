"""ARPO's own loop as a foreign program: it knows nothing but its environment variables and HTTP, and imports no ARPO.

A screenshot, a response, its actions, until the desktop says that the episode has ended: `harness=command
"harness.argv=[python,$PWD/experiments/foreign_loop/agent.py]"`. Its prompt is that of `prompt=compact`.
"""

import base64
import json
import os
import urllib.error
import urllib.request


def request(address: str, body: object = None) -> bytes:
    """Return what an address gives, with a body in JSON where there is one."""
    headers = {"Authorization": f"Bearer {os.environ['ARPO_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=600) as reply:
        return reply.read()


def screenshot() -> dict[str, object]:
    """Return what is on the screen as a part of a message."""
    png = request(f"{os.environ['ARPO_ENDPOINT']}/screen")
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}}


def main() -> None:
    """Play one episode."""
    first = [{"type": "text", "text": os.environ["ARPO_TASK"]}, screenshot()]
    messages: list[dict[str, object]] = [{"role": "user", "content": first}]
    while True:
        body = {"model": os.environ["ARPO_MODEL"], "messages": messages}
        answer = json.loads(request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body))
        text = answer["choices"][0]["message"]["content"]
        try:
            state = json.loads(request(f"{os.environ['ARPO_ENDPOINT']}/act", {"response": text}))
        except urllib.error.HTTPError as error:
            if error.code == 400:  # the response is no action, which ends the episode as in the own loop
                return
            raise
        if state["ended"]:
            return
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": [screenshot()]}]


if __name__ == "__main__":
    main()
