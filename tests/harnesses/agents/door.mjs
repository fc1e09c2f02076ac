// The desktop of the episode over HTTP, as the agents in JavaScript reach it.

const address = process.env.ARPO_DESKTOP;

/** Returns a screenshot, a PNG in base 64. */
export async function screen() {
  return Buffer.from(await (await fetch(`${address}/screen`)).arrayBuffer()).toString("base64");
}

/** Performs an action, and returns how many more there may be. */
export async function act(action) {
  const headers = { "Content-Type": "application/json" };
  const reply = await fetch(`${address}/act`, { method: "POST", headers, body: JSON.stringify({ action }) });
  return `Done, ${(await reply.json()).steps_left} steps left.`;
}

export const click = ({ x, y }) => act(`click(start_box='(${x},${y})')`);
export const typeText = ({ text }) => act(`type(content='${text}')`);
export const { ARPO_MODEL: MODEL, ARPO_TASK: TASK } = process.env;
export const SYSTEM = "You operate a desktop: look at the screen, then click or type. Say that you are done when you are.";
