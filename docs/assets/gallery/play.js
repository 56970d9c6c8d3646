// Episodes of a policy in a world.

// Numbers in [0, 1) by a seed (splitmix32).
export function randomOf(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x9e3779b9) | 0;
    let x = state ^ (state >>> 16);
    x = Math.imul(x, 0x21f0aaad);
    x = Math.imul(x ^ (x >>> 15), 0x735a2d97);
    return ((x ^ (x >>> 15)) >>> 0) / 2 ** 32;
  };
}

// One episode after another; `next` makes an env step: one frame, or as many as an action counts for.
export class Game {
  constructor(world, policy, random) {
    Object.assign(this, { world, policy, random });
    this.begin();
  }

  begin() {
    this.state = this.world.begin(this.random);
    this.policy?.begin();
    [this.total, this.frames, this.over] = [0, 0, false];
  }

  // Makes an action, or asks the policy for one.
  async next(action) {
    const chosen = action ?? (await this.policy.act(this.world.observe(this.state)));
    for (let frame = 0; frame < (this.world.repeat ?? 1) && !this.over; frame++) {
      const { state, reward, over } = this.world.step(this.state, chosen, this.random);
      this.state = state;
      this.total += reward;
      this.frames += 1;
      this.over = over || this.frames >= this.world.limit;
    }
    return chosen;
  }
}

// The returns of episodes; of a game for two, those of the policy, which begins every other one, against random moves.
export async function measure(world, policy, episodes, seed) {
  const random = randomOf(seed), game = new Game(world, policy, random), returns = [], lengths = [];
  for (let number = 0; number < episodes; number++) {
    game.begin();
    let gained = 0, mine = number % 2 === 0;
    while (!game.over) {
      const before = game.total;
      if (world.players && !mine) {
        const moves = world.allowed(game.state).flatMap((free, move) => (free ? [move] : []));
        await game.next(moves[Math.floor(random() * moves.length)]);
      } else await game.next();
      gained += (mine || !world.players ? 1 : -1) * (game.total - before);
      if (world.players) mine = !mine;
    }
    returns.push(gained);
    lengths.push(game.frames);
  }
  return { returns, lengths };
}
