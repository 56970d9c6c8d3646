// CartPole-v1 of Gymnasium: a pole on a cart, kept upright by pushes of 10 N; an Euler step takes 0.02 s.
const GRAVITY = 9.8, POLE_MASS = 0.1, TOTAL_MASS = 1.1, HALF_LENGTH = 0.5, FORCE = 10, STEP_S = 0.02;
const X_LIMIT = 2.4, ANGLE_LIMIT = (12 * 2 * Math.PI) / 360;

export const limit = 500;

export function begin(random) {
  const draw = () => random() * 0.1 - 0.05;
  return { x: draw(), speed: draw(), angle: draw(), turn: draw() };
}

export function step({ x, speed, angle, turn }, action) {
  const force = action === 1 ? FORCE : -FORCE;
  const cosine = Math.cos(angle), sine = Math.sin(angle), moment = POLE_MASS * HALF_LENGTH;
  const pull = (force + moment * turn * turn * sine) / TOTAL_MASS;
  const turning =
    (GRAVITY * sine - cosine * pull) / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cosine * cosine) / TOTAL_MASS));
  const moving = pull - (moment * turning * cosine) / TOTAL_MASS;
  const state = {
    x: x + STEP_S * speed,
    speed: speed + STEP_S * moving,
    angle: angle + STEP_S * turn,
    turn: turn + STEP_S * turning,
  };
  const over = Math.abs(state.x) > X_LIMIT || Math.abs(state.angle) > ANGLE_LIMIT;
  return { state, reward: 1, over };
}

export const observe = ({ x, speed, angle, turn }) => ({ observation: [x, speed, angle, turn] });

export function draw(pen, { x, angle }, { width, height, ink, strong }) {
  const scale = width / 5, ground = height * 0.75, middle = width / 2 + x * scale;
  pen.line([0, ground], [width, ground], ink, 1);
  pen.box(middle - 0.25 * scale, ground - 0.15 * scale, 0.5 * scale, 0.3 * scale, ink);
  const length = 2 * HALF_LENGTH * scale;
  pen.line([middle, ground], [middle + length * Math.sin(angle), ground - length * Math.cos(angle)], strong, 7);
}
