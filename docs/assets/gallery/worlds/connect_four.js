// connect_four_v3 of PettingZoo: two players drop stones; four in a line win. Cells count from the top left.
const ROWS = 6, COLUMNS = 7, LENGTH = 4;

export const players = 2;
export const limit = ROWS * COLUMNS;

export const begin = () => ({ cells: new Array(ROWS * COLUMNS).fill(0), turn: 1 });

export const allowed = ({ cells }) => Array.from({ length: COLUMNS }, (_, column) => cells[column] === 0);

function line(cells, who) {
  for (let row = 0; row < ROWS; row++)
    for (let column = 0; column < COLUMNS; column++)
      for (const [down, right] of [[0, 1], [1, 0], [1, 1], [1, -1]]) {
        const last = [row + down * (LENGTH - 1), column + right * (LENGTH - 1)];
        if (last[0] >= ROWS || last[1] >= COLUMNS || last[1] < 0) continue;
        const places = Array.from({ length: LENGTH }, (_, i) => (row + down * i) * COLUMNS + column + right * i);
        if (places.every((place) => cells[place] === who)) return places;
      }
  return null;
}

// The reward is that of the player who moved.
export function step({ cells, turn }, action) {
  const after = cells.slice();
  let place = (ROWS - 1) * COLUMNS + action;
  while (place >= 0 && after[place] !== 0) place -= COLUMNS;
  if (place < 0) throw new Error(`column ${action} is full`);
  after[place] = turn;
  const won = line(after, turn);
  const over = won !== null || after.every((cell) => cell !== 0);
  return { state: { cells: after, turn: 3 - turn, line: won }, reward: won ? 1 : 0, over };
}

export function observe({ cells, turn }) {
  const observation = cells.flatMap((cell) => [cell === turn ? 1 : 0, cell === 3 - turn ? 1 : 0]);
  return { observation, action_mask: allowed({ cells }).map(Number) };
}

export const actionAt = (x, y, { width, height }) => {
  const cell = Math.min(width / COLUMNS, height / ROWS);
  return Math.floor((x - (width - cell * COLUMNS) / 2) / cell);
};

export function draw(pen, { cells, line: won }, { width, height, ink, strong, soft }) {
  const cell = Math.min(width / COLUMNS, height / ROWS), left = (width - cell * COLUMNS) / 2;
  pen.frame(left, 0, cell * COLUMNS, cell * ROWS, ink);
  cells.forEach((who, place) => {
    const x = left + ((place % COLUMNS) + 0.5) * cell, y = (Math.floor(place / COLUMNS) + 0.5) * cell;
    if (who) pen.disc(x, y, cell * 0.42, who === 1 ? strong : "#d97706");
    else pen.disc(x, y, cell * 0.08, soft);
    if (won?.includes(place)) pen.disc(x, y, cell * 0.15, ink);
  });
}
