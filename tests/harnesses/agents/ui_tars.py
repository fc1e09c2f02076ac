"""A stand-in of OSWorld's UI-TARS agent: all texts stay in the context, five screenshots, three tries at an answer.

It acts by programs on the desktop, as OSWorld's does, or by actions where the environment runs no programs.
"""

import re
import urllib.error

import openai
from door import MAX_STEPS, MODEL, TASK, act, request, screen_url

WINDOW, TRIES = 5, 3
ACTION = re.compile(r"Action: (click\(start_box='\((\d+),(\d+)\)'\)|type\(content='(.*)'\)|wait\(\)|finished\(.*\))")
SYSTEM = {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]}
GOAL = {"role": "user", "content": [{"type": "text", "text": f"You are a GUI agent.\n\n## User Instruction\n{TASK}"}]}


def picture(url):
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


def said(text):
    """Write an old answer with the tokens around its points that the model samples and its text lacks."""
    text = re.sub(r"start_box='(\(\d+,\d+\))'", r"start_box='<|box_start|>\1<|box_end|>'", text)
    return {"role": "assistant", "content": [{"type": "text", "text": text}]}


def perform(action, x, y, text):
    code = f"pyautogui.click({x}, {y}, button='left')" if x else f"pyautogui.write({text!r}, interval=0.1)"
    code = f"import pyautogui, time; {code if x or text else 'time.sleep(1)'}"
    try:
        request("execute", {"command": ["python", "-c", code], "shell": False})
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        act(action)


def ask(messages):
    for _ in range(TRIES):
        answer = openai.OpenAI().chat.completions.create(
            model=MODEL, messages=messages, frequency_penalty=1, max_tokens=500, temperature=0.0, top_p=0.9
        )
        text = answer.choices[0].message.content.strip()
        if found := ACTION.search(text):
            return text, found
    raise SystemExit("no answer can be read")


urls, texts, found = [], [], None
while len(urls) < MAX_STEPS and not (found and found[1].startswith("finished")):
    if found:
        perform(*found.groups())
    urls.append(screen_url())
    messages = [SYSTEM, GOAL]
    for number, url in enumerate(urls):
        messages += [picture(url)] * (number >= len(urls) - WINDOW) + [said(text) for text in texts[number:][:1]]
    text, found = ask(messages)
    texts.append(text)
