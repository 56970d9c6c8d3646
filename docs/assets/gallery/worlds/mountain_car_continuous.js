// MountainCarContinuous-v0 of Gymnasium, which keeps its state in float32; an action counts for `repeat` frames.
import { moved } from "./mountain_car.js";
export { begin, draw, observe } from "./mountain_car.js";

const POWER = 0.0015, GOAL = 0.45;

export const limit = 999;
export const repeat = 8;

export function step(state, action) {
  const after = moved(state, Math.min(Math.max(action[0], -1), 1) * POWER);
  const next = { place: Math.fround(after.place), speed: Math.fround(after.speed) };
  const over = next.place >= GOAL && next.speed >= 0;
  return { state: next, reward: (over ? 100 : 0) - 0.1 * action[0] ** 2, over };
}
