// The AI SDK with its provider for endpoints like OpenAI's, streamed; its tools return a text and a picture.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, SYSTEM, TASK, click, screen, typeText } from "./door.mjs";

const shown = async (done) => ({ text: await done, data: await screen() });
const toModelOutput = ({ output }) => ({
  type: "content",
  value: [
    { type: "text", text: output.text },
    { type: "file", data: { type: "data", data: output.data }, mediaType: "image/png" },
  ],
});
const { OPENAI_BASE_URL: baseURL, OPENAI_API_KEY: apiKey } = process.env;
const result = streamText({
  model: createOpenAICompatible({ name: "arpo", baseURL, apiKey, includeUsage: true, supportsMultiPartToolContent: true })(MODEL),
  system: SYSTEM,
  messages: [
    {
      role: "user",
      content: [
        { type: "text", text: TASK },
        { type: "image", image: await screen() },
      ],
    },
  ],
  tools: {
    click: tool({
      description: "Click a point of the screen.",
      inputSchema: z.object({ x: z.number().int(), y: z.number().int() }),
      execute: (given) => shown(click(given)),
      toModelOutput,
    }),
    type_text: tool({
      description: "Type a text where the focus is.",
      inputSchema: z.object({ text: z.string() }),
      execute: (given) => shown(typeText(given)),
      toModelOutput,
    }),
  },
  stopWhen: stepCountIs(20),
  onError: ({ error }) => {
    throw error;
  },
});
console.log(await result.text);
