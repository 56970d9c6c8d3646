// HalfCheetah-v5 of Gymnasium: half an animal that runs forward, by torques at its six joints.
import { flatRobot, normal, seen } from "../robot.js";

const robot = await flatRobot("half_cheetah", 5);

export const limit = 1000;

export const begin = (random) => robot.begin(() => random() * 0.2 - 0.1, () => 0.1 * normal(random));

export function step(state, action) {
  const { after, forward, effort } = robot.move(state, action);
  return { state: after, reward: forward - 0.1 * effort, over: false };
}

export const observe = (state) => seen(state);
export const { draw } = robot;
