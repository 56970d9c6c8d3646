// MountainCar-v0 and, with `continuous`, MountainCarContinuous-v0 of Gymnasium: a car too weak for its hill.
const GRAVITY = 0.0025, MOST_SPEED = 0.07, LEFT = -1.2, RIGHT = 0.6;

export const limit = 200;

export const begin = (random) => ({ place: random() * 0.2 - 0.6, speed: 0 });

const clipped = (x, low, high) => Math.min(Math.max(x, low), high);

export function moved({ place, speed }, push) {
  let next = clipped(speed + push - GRAVITY * Math.cos(3 * place), -MOST_SPEED, MOST_SPEED);
  const there = clipped(place + next, LEFT, RIGHT);
  if (there === LEFT && next < 0) next = 0;
  return { place: there, speed: next };
}

export function step(state, action) {
  const after = moved(state, (action - 1) * 0.001);
  return { state: after, reward: -1, over: after.place >= 0.5 && after.speed >= 0 };
}

export const observe = ({ place, speed }) => ({ observation: [place, speed] });

export function draw(pen, { place }, { width, height, ink, strong }) {
  const across = (x) => ((x - LEFT) / (RIGHT - LEFT)) * width;
  const up = (x) => height * (0.9 - 0.75 * (Math.sin(3 * x) * 0.45 + 0.55));
  for (let x = LEFT; x < RIGHT; x += 0.02) pen.line([across(x), up(x)], [across(x + 0.02), up(x + 0.02)], ink, 1);
  pen.line([across(0.5), up(0.5)], [across(0.5), up(0.5) - 26], ink, 1);
  pen.box(across(0.5) - 12, up(0.5) - 26, 12, 8, strong);
  pen.disc(across(place), up(place) - 8, 8, strong);
}
