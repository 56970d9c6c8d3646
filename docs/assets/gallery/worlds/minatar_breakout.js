// MinAtarBreakout of palaestra.envs: a ball, a paddle, and three rows of bricks that pay 1 each.
import { LEFT, RIGHT, SIZE, board, drawn, game, inside, moved, picture } from "./minatar.js";

const bricks = () => board((row) => row >= 1 && row <= 3);
const one = (y, x) => board((row, column) => row === y && column === x);

function begun(draw) {
  const right = draw >= 0.5 ? 1 : 0, x = right * 9;
  return { paddle: 4, x, y: 3, dx: 1 - 2 * right, dy: 1, trailX: x, trailY: 3, struck: false, bricks: bricks() };
}

function played(state, button) {
  const paddle = moved(state.paddle, button), { x, y } = state;
  let { dx, dy } = state, newX = x + dx, newY = y + dy, wall = state.bricks;
  if (newX < 0 || newX > 9) dx = -dx;
  newX = inside(newX);
  const ceiling = newY < 0;
  newY = Math.max(newY, 0);
  const cell = newY * SIZE + newX;
  const touches = newY < SIZE && wall[cell] && !ceiling, breaks = touches && !state.struck;
  if (breaks) wall = wall.map((there, place) => there && place !== cell);
  const low = newY === 9 && !ceiling && !touches;
  if (low && !wall.some(Boolean)) wall = bricks();
  const middle = low && x === paddle, corner = low && !middle && newX === paddle;
  if (corner) dx = -dx;
  if (ceiling || breaks || middle || corner) dy = -dy;
  if (breaks || middle || corner) newY = y;
  const after = { paddle, x: newX, y: newY, dx, dy, trailX: x, trailY: y, struck: touches, bricks: wall };
  return { after, reward: breaks ? 1 : 0, over: low && !middle && !corner };
}

export const limit = 1000;
export const { begin, step } = game([0, LEFT, RIGHT], begun, played);

export const observe = (state) =>
  picture([one(9, state.paddle), one(state.y, state.x), one(state.trailY, state.trailX), state.bricks]);

export const draw = (pen, state, look) =>
  drawn(pen, [[state.bricks, look.soft], [one(9, state.paddle), look.ink], [one(state.y, state.x), look.strong]], look);
