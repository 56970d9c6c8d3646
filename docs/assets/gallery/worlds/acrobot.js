// Acrobot-v1 of Gymnasium: two links, torque at the joint between them; the tip has to swing above the line.
const STEP_S = 0.2, GRAVITY = 9.8, MOST_TURN_1 = 4 * Math.PI, MOST_TURN_2 = 9 * Math.PI;

export const limit = 500;

export function begin(random) {
  const draw = () => Math.fround(random() * 0.2 - 0.1);
  return { angle1: draw(), angle2: draw(), turn1: draw(), turn2: draw() };
}

// Masses, lengths and moments of inertia are 1, centres of mass in the middle of the links.
function slope([angle1, angle2, turn1, turn2], torque) {
  const cosine = Math.cos(angle2), sine = Math.sin(angle2);
  const d1 = 0.25 + (1 + 0.25 + cosine) + 2, d2 = 0.25 + 0.5 * cosine + 1;
  const phi2 = 0.5 * GRAVITY * Math.cos(angle1 + angle2 - Math.PI / 2);
  const phi1 =
    -0.5 * turn2 ** 2 * sine - turn2 * turn1 * sine + 1.5 * GRAVITY * Math.cos(angle1 - Math.PI / 2) + phi2;
  const turning2 = (torque + (d2 / d1) * phi1 - 0.5 * turn1 ** 2 * sine - phi2) / (1.25 - d2 ** 2 / d1);
  return [turn1, turn2, -(d2 * turning2 + phi1) / d1, turning2];
}

function wrapped(angle) {
  while (angle > Math.PI) angle -= 2 * Math.PI;
  while (angle < -Math.PI) angle += 2 * Math.PI;
  return angle;
}

const clipped = (x, most) => Math.min(Math.max(x, -most), most);

export function step({ angle1, angle2, turn1, turn2 }, action) {
  const numbers = [angle1, angle2, turn1, turn2], torque = action - 1;
  const shifted = (change, seconds) => numbers.map((number, i) => number + seconds * change[i]);
  const first = slope(numbers, torque), second = slope(shifted(first, STEP_S / 2), torque);
  const third = slope(shifted(second, STEP_S / 2), torque), fourth = slope(shifted(third, STEP_S), torque);
  const after = numbers.map((n, i) => n + (STEP_S / 6) * (first[i] + 2 * second[i] + 2 * third[i] + fourth[i]));
  const state = {
    angle1: wrapped(after[0]),
    angle2: wrapped(after[1]),
    turn1: clipped(after[2], MOST_TURN_1),
    turn2: clipped(after[3], MOST_TURN_2),
  };
  const over = -Math.cos(state.angle1) - Math.cos(state.angle2 + state.angle1) > 1;
  return { state, reward: over ? 0 : -1, over };
}

export const observe = ({ angle1, angle2, turn1, turn2 }) => ({
  observation: [Math.cos(angle1), Math.sin(angle1), Math.cos(angle2), Math.sin(angle2), turn1, turn2],
});

export function draw(pen, { angle1, angle2 }, { width, height, ink, strong }) {
  const scale = height / 4.8, middle = [width / 2, height / 2];
  pen.line([0, middle[1] - scale], [width, middle[1] - scale], ink, 1);
  const joint = [middle[0] + scale * Math.sin(angle1), middle[1] + scale * Math.cos(angle1)];
  const tip = [joint[0] + scale * Math.sin(angle1 + angle2), joint[1] + scale * Math.cos(angle1 + angle2)];
  pen.line(middle, joint, strong, 7);
  pen.line(joint, tip, strong, 7);
  pen.disc(middle[0], middle[1], 4, ink);
  pen.disc(joint[0], joint[1], 4, ink);
}
