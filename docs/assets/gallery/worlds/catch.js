// Catch of palaestra.envs.tiny: a ball falls one row a step; the paddle in the last row has to be below it.
const ROWS = 10, COLUMNS = 5;

export const limit = ROWS;

export const begin = (random) => ({ row: 0, column: Math.floor(random() * COLUMNS), paddle: Math.floor(COLUMNS / 2) });

export function step({ row, column, paddle }, action) {
  const state = { row: row + 1, column, paddle: Math.min(Math.max(paddle + action - 1, 0), COLUMNS - 1) };
  const over = state.row === ROWS - 1;
  return { state, reward: over ? (state.paddle === column ? 1 : -1) : 0, over };
}

export function observe({ row, column, paddle }) {
  const observation = new Array(ROWS * COLUMNS).fill(0);
  observation[row * COLUMNS + column] = 1;
  observation[(ROWS - 1) * COLUMNS + paddle] = 1;
  return { observation };
}

export function draw(pen, { row, column, paddle }, { width, height, ink, strong }) {
  const cell = Math.min(width / COLUMNS, height / ROWS), left = (width - cell * COLUMNS) / 2;
  pen.frame(left, 0, cell * COLUMNS, cell * ROWS, ink);
  pen.box(left + paddle * cell, (ROWS - 1) * cell, cell, cell, ink);
  pen.disc(left + (column + 0.5) * cell, (row + 0.5) * cell, cell * 0.4, strong);
}
