// Hopper-v5 of Gymnasium: a leg that hops forward, by torques at its three joints; it ends when it falls.
import { flatRobot, seen } from "../robot.js";

const robot = await flatRobot("hopper", 4);

export const limit = 1000;

export const begin = (random) => robot.begin(() => random() * 0.01 - 0.005);

export function step(state, action) {
  const { after, forward, effort } = robot.move(state, action), [, height, angle] = after.place;
  const sane = [...after.place.slice(2), ...after.speed].every((number) => Math.abs(number) < 100);
  const upright = sane && height > 0.7 && Math.abs(angle) < 0.2;
  return { state: after, reward: forward + (upright ? 1 : 0) - 0.001 * effort, over: !upright };
}

export const observe = (state) => seen(state, 10);
export const { draw } = robot;
