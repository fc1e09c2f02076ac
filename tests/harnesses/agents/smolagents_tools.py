"""An agent of smolagents that calls tools, streamed, without pictures."""

from door import MAX_STEPS, MODEL, TASK, click, type_text
from smolagents import OpenAIModel, ToolCallingAgent, tool

tools = [tool(click), tool(type_text)]
agent = ToolCallingAgent(tools=tools, model=OpenAIModel(MODEL), max_steps=MAX_STEPS + 2, stream_outputs=True)
agent.run(TASK)
