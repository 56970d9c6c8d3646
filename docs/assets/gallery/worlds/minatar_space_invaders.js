// MinAtarSpaceInvaders of palaestra.envs: a cannon below a block of aliens, each of which pays 1.
import { FIRE, LEFT, RIGHT, SIZE, board, drawn, game, moved, nothing, picture } from "./minatar.js";

const wave = () => board((row, column) => row < 4 && column >= 2 && column <= 7);
const cannonAt = (place) => board((row, column) => row === SIZE - 1 && column === place);
const shifted = (cells, down, right) =>
  board((row, column) => cells[((row - down + SIZE) % SIZE) * SIZE + ((column - right + SIZE) % SIZE)]);
const inColumn = (cells, column) => cells.some((there, place) => there && place % SIZE === column);
const count = (cells) => cells.reduce((sum, there) => sum + (there ? 1 : 0), 0);

function begun() {
  return {
    cannon: 5,
    shots: nothing(),
    bullets: nothing(),
    aliens: wave(),
    direction: -1,
    interval: 12,
    moveTimer: 12,
    bulletTimer: 10,
    shotTimer: 0,
  };
}

// The lowest alien of the column that is nearest to the cannon; of two, of the left one.
function shooter(aliens, cannon) {
  let best = 99, column = 0;
  for (let place = 0; place < SIZE; place++) {
    const distance = inColumn(aliens, place) ? 2 * Math.abs(place - cannon) + (place > cannon ? 1 : 0) : 99;
    if (distance < best) [best, column] = [distance, place];
  }
  for (let row = SIZE - 1; row >= 0; row--) if (aliens[row * SIZE + column]) return row * SIZE + column;
  return -1;
}

function played(state, button) {
  const { direction, interval } = state, cannon = moved(state.cannon, button), here = 9 * SIZE + cannon;
  const fires = button === FIRE && state.shotTimer === 0;
  let shots = board((row, column) =>
    row === 9 ? false : row === 8 ? false : state.shots[(row + 1) * SIZE + column],
  );
  if (fires) shots[8 * SIZE + state.cannon] = true;
  if (!fires) shots[8 * SIZE + state.cannon] = false;
  let bullets = board((row, column) => row > 0 && state.bullets[(row - 1) * SIZE + column]);
  let { aliens } = state, over = bullets[here] || aliens[here];
  const number = count(aliens), moves = state.moveTimer === 0;
  const turns = moves && inColumn(aliens, direction < 0 ? 0 : 9);
  if (turns && aliens.some((there, place) => there && place >= 9 * SIZE)) over = true;
  if (turns) aliens = shifted(aliens, 1, 0);
  else if (moves) aliens = shifted(aliens, 0, direction < 0 ? -1 : 1);
  if (moves && aliens[here]) over = true;
  const shoots = state.bulletTimer === 0, from = shoots ? shooter(aliens, cannon) : -1;
  if (from >= 0) bullets[from] = true;
  const killed = aliens.map((there, place) => there && shots[place]);
  aliens = aliens.map((there, place) => there && !killed[place]);
  shots = shots.map((there, place) => there && !killed[place]);
  const cleared = !aliens.some(Boolean);
  const after = {
    cannon,
    shots,
    bullets,
    aliens: cleared ? wave() : aliens,
    direction: turns ? -direction : direction,
    interval: interval - (cleared && interval > 6 ? 1 : 0),
    moveTimer: (moves ? Math.min(number, interval) : state.moveTimer) - 1,
    bulletTimer: (shoots ? 10 : state.bulletTimer) - 1,
    shotTimer: Math.max((fires ? 5 : state.shotTimer) - 1, 0),
  };
  return { after, reward: count(killed), over };
}

export const limit = 1000;
export const { begin, step } = game([0, LEFT, RIGHT, FIRE], begun, played);

export function observe({ cannon, aliens, direction, shots, bullets }) {
  const left = direction < 0 ? aliens : nothing(), right = direction < 0 ? nothing() : aliens;
  return picture([cannonAt(cannon), aliens, left, right, shots, bullets]);
}

export const draw = (pen, { cannon, aliens, shots, bullets }, look) =>
  drawn(pen, [[aliens, look.soft], [cannonAt(cannon), look.ink], [shots, look.strong], [bullets, "#d97706"]], look);
