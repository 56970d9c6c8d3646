// Recall of palaestra.envs.tiny with 4 cues: the first observation shows one, and 16 steps later it is asked for.
const CUES = 4, DELAY = 16;

export const limit = DELAY + 1;

export const begin = (random) => ({ cue: Math.floor(random() * CUES), steps: 0, said: -1 });

export function step({ cue, steps }, action) {
  const over = steps + 1 > DELAY;
  return { state: { cue, steps: steps + 1, said: over ? action : -1 }, reward: over && action === cue ? 1 : 0, over };
}

export function observe({ cue, steps }) {
  const observation = new Array(CUES + 1).fill(0);
  if (steps === 0) observation[cue] = 1;
  observation[CUES] = steps === DELAY ? 1 : 0;
  return { observation };
}

export function draw(pen, { cue, steps, said }, { width, height, ink, strong }) {
  const cell = width / 6;
  for (let number = 0; number < CUES; number++) {
    const left = (number + 1) * cell + 4;
    pen.frame(left, height * 0.15, cell - 8, cell - 8, ink);
    if (steps === 0 && number === cue) pen.box(left, height * 0.15, cell - 8, cell - 8, strong);
    pen.frame(left, height * 0.6, cell - 8, cell - 8, ink);
    if (number === said) pen.box(left, height * 0.6, cell - 8, cell - 8, strong);
  }
  pen.text(steps === 0 ? "the cue" : steps > DELAY ? "the answer" : `remembers, step ${steps}`, 8, height - 8, ink);
}
