"""The ReAct agent of Inspect as an evaluation of one sample, by the provider that the first argument names."""

import sys

import door
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText
from inspect_ai.tool import ToolDef


def shown(text):
    return [ContentText(text=text), ContentImage(image=door.screen_url())]


async def click(x: int, y: int):
    return shown(door.click(x, y))


async def type_text(text: str):
    return shown(door.type_text(text))


told = {click: {"x": "Pixels from the left.", "y": "Pixels from the top."}, type_text: {"text": "The text."}}
tools = [ToolDef(each, each.__name__, door.FUNCTIONS[each.__name__].__doc__, told[each]) for each in told]
task = Task([Sample([ChatMessageUser(content=shown(door.TASK))])], solver=react(tools=tools))
(log,) = eval(task, model=f"{sys.argv[1]}/{door.MODEL}", display="none", log_dir="logs")
assert log.status == "success", log.error
