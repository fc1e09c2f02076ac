"""A stand-in of OSWorld's UI-TARS agent: all texts stay in the context, five screenshots, three tries at an answer.

It acts by programs on the desktop, as OSWorld's does, or by actions where the environment runs no programs. With the
option `tiny` it suits a tiny policy: the instruction alone stands before the first screenshot, old answers are sent
as they were said, and requests are made without OpenAI's client, whose import costs more than such an episode.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.request

from door import MAX_STEPS, MODEL, TASK, request, screen_url

WINDOW, TRIES = 5, 3
TINY = "tiny" in sys.argv
ACTION = re.compile(
    r"Action: ((?:\w+\(start_box='\(\d+,\d+\)'.*|type\(content='.*'|hotkey\(key='.*'|wait\(|finished\(.*)\))",
    re.DOTALL,
)
POINT, TEXT = re.compile(r"\((\d+),(\d+)\)"), re.compile(r"type\(content='(.*)'\)", re.DOTALL)
SYSTEM = {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]}
WRITTEN = TASK if TINY else f"You are a GUI agent.\n\n## User Instruction\n{TASK}"
GOAL = {"role": "user", "content": [{"type": "text", "text": WRITTEN}]}
SIZES = json.loads(request("task"))
OPTIONS = {"model": MODEL, "frequency_penalty": 1, "max_tokens": 500, "temperature": 0.0, "top_p": 0.9}


def picture(url):
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


def said(text):
    """Write an old answer with the tokens around its points that UI-TARS samples and its text lacks."""
    text = text if TINY else re.sub(r"_box='(\(\d+,\d+\))'", r"_box='<|box_start|>\1<|box_end|>'", text)
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def on_the_screen(action):
    """Return an action with its points in pixels of the screen, not of the picture that the model sees."""
    across, down = SIZES["width"] / SIZES["model_width"], SIZES["height"] / SIZES["model_height"]
    moved = POINT.sub(lambda point: f"({round(int(point[1]) * across)},{round(int(point[2]) * down)})", action)
    return action if action.startswith("type") else moved


def program(action):
    """Return what does an action on a desktop that runs programs; nothing where an action of the door is to do it."""
    if text := TEXT.match(action):
        return f"pyautogui.write({text[1]!r}, interval=0.1)"
    if action.startswith("click"):
        return "pyautogui.click({}, {}, button='left')".format(*POINT.search(action).groups())
    return ""


def perform(action):
    """Do an action, and return whether the desktop says that the episode has ended."""
    action = on_the_screen(action)
    try:
        if code := program(action):
            request("execute", {"command": ["python", "-c", f"import pyautogui; {code}"], "shell": False})
            return False
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
    return json.loads(request("act", {"action": action}))["ended"]


def answered(messages):
    if not TINY:
        import openai

        return openai.OpenAI().chat.completions.create(messages=messages, **OPTIONS).choices[0].message.content
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    body = json.dumps({"messages": messages, **OPTIONS}).encode()
    asked = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, headers)
    with urllib.request.urlopen(asked, timeout=600) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def ask(messages):
    for _ in range(TRIES):
        text = answered(messages).strip()
        if found := ACTION.search(text):
            return text, found[1]
    raise SystemExit("no answer can be read")


urls, texts = [], []
for _ in range(MAX_STEPS):
    urls.append(screen_url())
    messages = [GOAL] if TINY else [SYSTEM, GOAL]
    for number, url in enumerate(urls):
        messages += [picture(url)] * (number >= len(urls) - WINDOW) + [said(text) for text in texts[number:][:1]]
    text, action = ask(messages)
    texts.append(text)
    if action.startswith("finished") or perform(action):
        break
