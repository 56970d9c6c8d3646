// What the MinAtar games of palaestra.envs share: 10 x 10 cells, sticky buttons, luck as integers of 32 bits.
export const SIZE = 10, LEFT = 1, RIGHT = 3, FIRE = 5;
const STICKY = 0.1;

// Random bits of other bits (C. Wellons' lowbias32), as `palaestra.envs.contract.tensor.mixed` has it.
function mixed(x) {
  x = Math.imul(x ^ (x >>> 16), 0x7feb352d);
  x = Math.imul(x ^ (x >>> 15), -2073254261);
  return x ^ (x >>> 16);
}

// Makes a game of what happens when a button is pressed; `buttons` are those of its actions.
export const game = (buttons, begun, played) => ({
  begin: (random) => {
    const first = random();
    return { luck: Math.floor(random() * 2 ** 24), pressed: 0, ...begun(first) };
  },
  step: (state, action) => {
    const luck = mixed((state.luck - 1640531527) | 0);
    const sticks = Math.fround(((luck >> 8) & 0xffffff) * 2 ** -24) < Math.fround(STICKY);
    const button = sticks ? state.pressed : buttons[action];
    const { after, reward, over } = played(state, button);
    return { state: { ...state, luck, pressed: button, ...after }, reward, over };
  },
});

export const board = (fill) => Array.from({ length: SIZE * SIZE }, (_, cell) => fill(Math.floor(cell / SIZE), cell % SIZE));
export const nothing = () => board(() => false);
export const inside = (place) => Math.min(Math.max(place, 0), SIZE - 1);
export const moved = (place, button) => inside(place + (button === RIGHT ? 1 : 0) - (button === LEFT ? 1 : 0));

// Channels of booleans by cell, last dimension: the channel.
export function picture(channels) {
  const observation = new Uint8Array(SIZE * SIZE * channels.length);
  channels.forEach((channel, c) =>
    channel.forEach((there, cell) => {
      if (there) observation[cell * channels.length + c] = 1;
    }),
  );
  return { observation };
}

export function drawn(pen, layers, { width, height, ink }) {
  const cell = Math.min(width, height) / SIZE, left = (width - cell * SIZE) / 2;
  pen.frame(left, 0, cell * SIZE, cell * SIZE, ink);
  for (const [layer, color] of layers)
    layer.forEach((there, place) => {
      if (there) pen.box(left + (place % SIZE) * cell, Math.floor(place / SIZE) * cell, cell - 1, cell - 1, color);
    });
}
