// tictactoe_v3 of PettingZoo: three in a line win. Cells count down the columns, from the left.
const LINES = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];

export const players = 2;
export const limit = 9;

export const begin = () => ({ cells: new Array(9).fill(0), turn: 1 });

export const allowed = ({ cells }) => cells.map((cell) => cell === 0);

// The reward is that of the player who moved.
export function step({ cells, turn }, action) {
  if (cells[action] !== 0) throw new Error(`cell ${action} is taken`);
  const after = cells.slice();
  after[action] = turn;
  const won = LINES.find((places) => places.every((place) => after[place] === turn)) ?? null;
  const over = won !== null || after.every((cell) => cell !== 0);
  return { state: { cells: after, turn: 3 - turn, line: won }, reward: won ? 1 : 0, over };
}

export function observe({ cells, turn }) {
  const observation = cells.flatMap((cell) => [cell === turn ? 1 : 0, cell === 3 - turn ? 1 : 0]);
  return { observation, action_mask: allowed({ cells }).map(Number) };
}

export const actionAt = (x, y, { width, height }) => {
  const cell = Math.min(width, height) / 3;
  return Math.floor((x - (width - 3 * cell) / 2) / cell) * 3 + Math.floor(y / cell);
};

export function draw(pen, { cells, line: won }, { width, height, ink, strong }) {
  const cell = Math.min(width, height) / 3, left = (width - 3 * cell) / 2;
  cells.forEach((who, place) => {
    const x = left + (Math.floor(place / 3) + 0.5) * cell, y = ((place % 3) + 0.5) * cell;
    pen.frame(x - cell / 2, y - cell / 2, cell, cell, ink);
    if (who) pen.disc(x, y, cell * 0.35, who === 1 ? strong : "#d97706");
    if (won?.includes(place)) pen.disc(x, y, cell * 0.1, ink);
  });
}
