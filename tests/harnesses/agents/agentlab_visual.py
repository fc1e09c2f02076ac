"""AgentLab's visual agent, whose observations are screenshots of the desktop, and whose calls are performed on it.

Its own loop of an experiment needs the network: it counts tokens with a file that tiktoken loads from OpenAI.
"""

import ast
import io
from dataclasses import replace

import door
import numpy as np
from agentlab.agents.visual_agent.agent_configs import DEFAULT_OBS_FLAGS, DEFAULT_PROMPT_FLAGS
from agentlab.agents.visual_agent.visual_agent import VisualAgentArgs
from agentlab.llm.chat_api import OpenAIModelArgs
from bgym import HighLevelActionSetArgs
from PIL import Image

CALLS = {"mouse_click": door.click, "keyboard_type": door.type_text}
FLAGS = replace(DEFAULT_PROMPT_FLAGS, obs=replace(DEFAULT_OBS_FLAGS, use_tabs=False), use_thinking=False)
FLAGS.action.action_set = HighLevelActionSetArgs(subsets=["chat", "coord"])
MODEL = OpenAIModelArgs(model_name=door.MODEL, max_new_tokens=500, vision_support=True)


def seen():
    goal = [{"type": "text", "text": door.TASK}]
    screen = np.asarray(Image.open(io.BytesIO(door.screen())).convert("RGB"))
    pages = {"open_pages_urls": [], "open_pages_titles": [], "active_page_index": 0}
    return {"goal_object": goal, "screenshot": screen, "last_action_error": "", **pages}


agent = VisualAgentArgs(chat_model_args=MODEL, flags=FLAGS).make_agent()
for _ in range(door.MAX_STEPS):
    action, _ = agent.get_action(seen())
    call = ast.parse(action, mode="eval").body
    if call.func.id not in CALLS:
        break
    CALLS[call.func.id](*map(ast.literal_eval, call.args))
