// OpenAI's Agents SDK for JavaScript as it comes: responses, tools that return a text and a picture.

import { Agent, run, tool } from "@openai/agents";
import { z } from "zod";
import { MODEL, SYSTEM, TASK, click, screen, typeText } from "./door.mjs";

const picture = async () => `data:image/png;base64,${await screen()}`;
const shown = async (done) => [
  { type: "text", text: await done },
  { type: "image", image: await picture() },
];
const agent = new Agent({
  name: "desktop",
  instructions: SYSTEM,
  model: MODEL,
  tools: [
    tool({
      name: "click",
      description: "Click a point of the screen.",
      parameters: z.object({ x: z.number().int(), y: z.number().int() }),
      execute: (given) => shown(click(given)),
    }),
    tool({
      name: "type_text",
      description: "Type a text where the focus is.",
      parameters: z.object({ text: z.string() }),
      execute: (given) => shown(typeText(given)),
    }),
  ],
});
const content = [
  { type: "input_text", text: TASK },
  { type: "input_image", image: await picture() },
];
console.log((await run(agent, [{ role: "user", content }], { maxTurns: 20 })).finalOutput);
