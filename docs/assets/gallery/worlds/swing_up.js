// CartPoleSwingUp of palaestra.envs.tiny: lifts a hanging rod by moving its cart; 8 frames of 0.01 s a step, integrated
// by Runge and Kutta's method of fourth order.
const FRAME_S = 0.01, FRAMES = 8, GRAVITY = 9.81, CART_MASS = 1, ROD_MASS = 0.1, ROD_LENGTH = 1, GEAR = 10, RAIL = 1.8;
const SLIDE_FRICTION = 5e-4, HINGE_FRICTION = 2e-6;

export const limit = 125;

export function begin(random) {
  const draw = () => (random() * 2 - 1) * 0.01 * Math.sqrt(3);
  const [x, angle, speed, turn] = [draw(), draw(), draw(), draw()];
  return { x, angle: angle + Math.PI, speed, turn };
}

function slope([, angle, speed, turn], force) {
  const sine = Math.sin(angle), cosine = Math.cos(angle), half = ROD_LENGTH / 2;
  const moment = ROD_MASS * half, inertia = (ROD_MASS * ROD_LENGTH ** 2) / 3, mass = CART_MASS + ROD_MASS;
  const push = force - SLIDE_FRICTION * speed + moment * turn * turn * sine;
  const torque = moment * GRAVITY * sine - HINGE_FRICTION * turn;
  const determinant = mass * inertia - (moment * cosine) ** 2;
  const acceleration = (inertia * push - moment * cosine * torque) / determinant;
  return [speed, turn, acceleration, (mass * torque - moment * cosine * push) / determinant];
}

function frame(numbers, force) {
  const shifted = (change, seconds) => numbers.map((number, i) => number + seconds * change[i]);
  const first = slope(numbers, force), second = slope(shifted(first, FRAME_S / 2), force);
  const third = slope(shifted(second, FRAME_S / 2), force), fourth = slope(shifted(third, FRAME_S), force);
  const mean = first.map((value, i) => (value + 2 * second[i] + 2 * third[i] + fourth[i]) / 6);
  const [x, angle, speed, turn] = shifted(mean, FRAME_S);
  const outwards = Math.abs(x) > RAIL && x * speed > 0;
  return [Math.min(Math.max(x, -RAIL), RAIL), angle, outwards ? 0 : speed, turn];
}

const near = (x, margin) => Math.exp(Math.log(0.1) * (x / margin) ** 2);

function gained([x, angle, , turn], control) {
  const upright = (Math.cos(angle) + 1) / 2, centred = (1 + near(x, 2)) / 2;
  return (upright * centred * ((4 + (1 - control * control)) / 5) * (1 + near(turn, 5))) / 2;
}

export function step({ x, angle, speed, turn }, action) {
  const control = Math.min(Math.max(action[0], -1), 1);
  let numbers = [x, angle, speed, turn], reward = 0;
  for (let number = 0; number < FRAMES; number++) {
    numbers = frame(numbers, GEAR * control);
    reward += gained(numbers, control);
  }
  const state = { x: numbers[0], angle: numbers[1], speed: numbers[2], turn: numbers[3] };
  return { state, reward, over: false };
}

export const observe = ({ x, angle, speed, turn }) => ({
  observation: [x, Math.cos(angle), Math.sin(angle), speed, turn],
});

export function draw(pen, { x, angle }, { width, height, ink, strong }) {
  const scale = width / 5, rail = height * 0.55, middle = width / 2 + x * scale;
  pen.line([width / 2 - RAIL * scale, rail], [width / 2 + RAIL * scale, rail], ink, 1);
  pen.box(middle - 0.2 * scale, rail - 0.12 * scale, 0.4 * scale, 0.24 * scale, ink);
  pen.line([middle, rail], [middle + scale * Math.sin(angle), rail - scale * Math.cos(angle)], strong, 7);
}
