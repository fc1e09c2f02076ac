"""An agent that sees and acts in a browser by Playwright alone: of ARPO it knows the addresses of model and browser.

    python train.py experiment=arpo_miniwob harness=command harness.devtools=true env.size=4 \
        "harness.argv=[ENVIRONMENT/bin/python,$PWD/experiments/foreign_loop/browser.py]"

ENVIRONMENT is a virtual environment with `playwright` in it; the browser is the episode's. Each step is a screenshot
of the page, a response, and its mouse and keys; the prompt is that of `prompt=compact`.
"""

import base64
import json
import os
import re
import urllib.request
from typing import Any

from playwright.sync_api import Page, sync_playwright

ACTION = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
NUMBERS = re.compile(r"-?\d+(?:\.\d+)?")
TEXT = re.compile(r"(?:content|key)='(.*)'", re.DOTALL)
STEPS = int(os.environ["ARPO_MAX_STEPS"])


def request(address: str, body: object = None) -> dict[str, Any]:
    """Return what an address gives, with a body in JSON where there is one."""
    headers = {"Authorization": f"Bearer {os.environ['ARPO_KEY']}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=600) as reply:
        return json.load(reply)


def perform(page: Page, response: str, scales: tuple[float, float]) -> bool:
    """Do what a response says, and return whether it was an action that a page can take."""
    found = ACTION.search(response)
    if found is None:
        return False
    name, given = found.groups()
    text = TEXT.search(given)
    numbers = [] if text else [float(number) for number in NUMBERS.findall(given)]
    points = [number * scales[place % 2] for place, number in enumerate(numbers)]
    match name:
        case "click" if len(points) >= 2:
            page.mouse.click(*points[:2])
        case "left_double" if len(points) >= 2:
            page.mouse.dblclick(*points[:2])
        case "hover" if len(points) >= 2:
            page.mouse.move(*points[:2])
        case "drag" if len(points) >= 4:
            page.mouse.move(*points[:2])
            page.mouse.down()
            page.mouse.move(*points[2:4])
            page.mouse.up()
        case "scroll" if len(points) >= 2:
            page.mouse.move(*points[:2])
            page.mouse.wheel(0, -200 if "up" in given else 200)
        case "type" if text:
            page.keyboard.type(text[1].encode().decode("unicode_escape", errors="replace"))
        case "hotkey" if text:
            page.keyboard.press("+".join(word.capitalize() for word in text[1].split()).replace("Ctrl", "Control"))
        case "wait":
            page.wait_for_timeout(500)
        case _:
            return False
    return True


def main() -> None:
    """Play one episode: until the page says that it is over, the response is no action, or the steps are spent."""
    task = request(f"{os.environ['ARPO_DESKTOP']}/task")
    scales = task["width"] / task["model_width"], task["height"] / task["model_height"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.connect_over_cdp(os.environ["ARPO_DEVTOOLS"])
        page = browser.contexts[0].pages[0]
        messages: list[dict[str, object]] = []
        for step in range(STEPS):
            picture = f"data:image/png;base64,{base64.b64encode(page.screenshot()).decode()}"
            shown = {"type": "image_url", "image_url": {"url": picture}}
            first = [] if step else [{"type": "text", "text": task["instruction"]}]
            messages.append({"role": "user", "content": [*first, shown]})
            body = {"model": os.environ["ARPO_MODEL"], "messages": messages}
            answer = request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body)
            response = answer["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": response})
            if not perform(page, response, scales) or page.evaluate("WOB_DONE_GLOBAL"):
                break


if __name__ == "__main__":
    main()
