// Pendulum-v1 of Gymnasium: swings a rod up and holds it, by a torque in [-2, 2].
const GRAVITY = 10, STEP_S = 0.05, MOST_TORQUE = 2, MOST_SPEED = 8;

export const limit = 200;

export const begin = (random) => ({ angle: (random() * 2 - 1) * Math.PI, turn: random() * 2 - 1 });

const clipped = (x, most) => Math.min(Math.max(x, -most), most);

function between(angle) {
  const full = 2 * Math.PI, rest = (angle + Math.PI) % full;
  return (rest < 0 ? rest + full : rest) - Math.PI;
}

export function step({ angle, turn }, action) {
  const torque = clipped(action[0], MOST_TORQUE);
  const reward = -(between(angle) ** 2 + 0.1 * turn ** 2 + 0.001 * torque ** 2);
  const next = clipped(turn + (((3 * GRAVITY) / 2) * Math.sin(angle) + 3 * torque) * STEP_S, MOST_SPEED);
  return { state: { angle: angle + next * STEP_S, turn: next }, reward, over: false };
}

export const observe = ({ angle, turn }) => ({ observation: [Math.cos(angle), Math.sin(angle), turn] });

export function draw(pen, { angle }, { width, height, ink, strong }) {
  const length = height * 0.4, middle = [width / 2, height / 2];
  pen.line(middle, [middle[0] - length * Math.sin(angle), middle[1] - length * Math.cos(angle)], strong, 12);
  pen.disc(middle[0], middle[1], 4, ink);
}
