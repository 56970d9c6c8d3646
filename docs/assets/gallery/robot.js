// Robots of MuJoCo, by its WebAssembly package, which is beside this file as the models of Gymnasium are.
import loadMujoco from "./mujoco/mujoco.js";

const FLOOR_M = 0.5; // from one mark on the floor to the next

const mujoco = await loadMujoco();

// Positions, velocities, and the accelerations that the solver of contacts begins from: all that a step depends on.
const written = (data) => ({
  place: Array.from(data.qpos),
  speed: Array.from(data.qvel),
  warm: Array.from(data.qacc_warmstart),
});

// A number of the standard normal distribution.
export const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

// A robot that moves along x in the plane of x and z; an action holds for some steps of physics.
export async function flatRobot(model, stepsOfAction) {
  const answer = await fetch(new URL(`./mujoco/${model}.xml`, import.meta.url));
  if (!answer.ok) throw new Error(`${model}.xml: ${answer.status}`);
  const robot = mujoco.MjModel.from_xml_string(await answer.text()), data = new mujoco.MjData(robot);
  const stepS = robot.opt.timestep * stepsOfAction;
  const read = ({ place, speed, warm }) => {
    data.qpos.set(place);
    data.qvel.set(speed);
    data.qacc_warmstart.set(warm);
  };
  return {
    // At rest, moved by what `draw` and `drawSpeed` give for each number.
    begin(draw, drawSpeed = draw) {
      mujoco.mj_resetData(robot, data);
      data.qpos.set(Array.from(data.qpos, (number) => number + draw()));
      data.qvel.set(Array.from(data.qvel, drawSpeed));
      mujoco.mj_forward(robot, data);
      return written(data);
    },
    // The state after an action, the metres a second along x, and the squares of the action, whose bounds are 1.
    move(state, action) {
      const held = action.map((number) => Math.min(Math.max(number, -1), 1));
      read(state);
      data.ctrl.set(held);
      for (let step = 0; step < stepsOfAction; step++) mujoco.mj_step(robot, data);
      const after = written(data), effort = held.reduce((sum, number) => sum + number ** 2, 0);
      return { after, forward: (after.place[0] - state.place[0]) / stepS, effort };
    },
    // Capsules as lines with round ends, seen from the side by an eye that moves along.
    draw(pen, state, { width, height, ink, strong, soft }) {
      read(state);
      mujoco.mj_kinematics(robot, data);
      const scale = height / 2, ground = height * 0.85, from = state.place[0] - width / 2 / scale;
      const at = (x, z) => [(x - from) * scale, ground - z * scale];
      pen.line([0, ground], [width, ground], ink, 1);
      for (let x = Math.ceil(from / FLOOR_M) * FLOOR_M; (x - from) * scale < width; x += FLOOR_M)
        pen.line(at(x, 0), at(x - 0.06, -0.1), ink, 1);
      for (let geom = 1; geom < robot.ngeom; geom++) { // the floor is number 0
        const [x, , z] = data.geom_xpos.slice(3 * geom), axis = data.geom_xmat.slice(9 * geom);
        const [radius, half] = robot.geom_size.slice(3 * geom), [along, up] = [axis[2] * half, axis[8] * half];
        pen.line(at(x - along, z - up), at(x + along, z + up), geom % 2 ? strong : soft, 2 * radius * scale);
      }
    },
  };
}

// What Gymnasium's robots show: all but where they are along x, velocities within limits.
export const seen = ({ place, speed }, most = Infinity) => ({
  observation: [...place.slice(1), ...speed.map((number) => Math.min(Math.max(number, -most), most))],
});
