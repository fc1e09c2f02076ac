"""An agent of smolagents that writes Python; a callback shows it the newest screenshot alone."""

import io

from door import MAX_STEPS, MODEL, TASK, click, screen, type_text
from PIL import Image
from smolagents import CodeAgent, OpenAIModel, tool


def picture():
    return Image.open(io.BytesIO(screen()))


def look(step, agent):
    """Show the screen of now, and forget those of before."""
    for earlier in agent.memory.steps[:-1]:
        earlier.observations_images = None
    step.observations_images = [picture()]


agent = CodeAgent(
    tools=[tool(click), tool(type_text)], model=OpenAIModel(MODEL), max_steps=MAX_STEPS + 2, step_callbacks=[look]
)
agent.run(TASK, images=[picture()])
