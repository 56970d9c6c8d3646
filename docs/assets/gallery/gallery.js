// The gallery: trained policies at work on this page; nothing is fetched from elsewhere.
import { loadPolicy } from "./policy.js";
import { Game, randomOf } from "./play.js";

const WIDTH = 480, HEIGHT = 300;
const place = document.getElementById("stage");
const address = (name) => new URL(name, import.meta.url).href;

function made(tag, options = {}, ...children) {
  const { data, ...properties } = options;
  const element = Object.assign(document.createElement(tag), properties);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

// What worlds draw with, in colours of the page.
function penOf(context) {
  const path = (color, begin) => {
    context.beginPath();
    begin();
    context.fillStyle = context.strokeStyle = color;
  };
  return {
    line(from, to, color, width) {
      path(color, () => (context.moveTo(...from), context.lineTo(...to)));
      Object.assign(context, { lineWidth: width, lineCap: "round" });
      context.stroke();
    },
    box(x, y, width, height, color) {
      path(color, () => context.rect(x, y, width, height));
      context.fill();
    },
    frame(x, y, width, height, color) {
      path(color, () => context.rect(x + 0.5, y + 0.5, width - 1, height - 1));
      context.lineWidth = 1;
      context.stroke();
    },
    disc(x, y, radius, color) {
      path(color, () => context.arc(x, y, radius, 0, 2 * Math.PI));
      context.fill();
    },
    text(text, x, y, color) {
      context.font = "14px system-ui, sans-serif";
      context.fillStyle = color;
      context.fillText(text, x, y);
    },
  };
}

class Stage {
  constructor(policies) {
    const scale = Math.min(2, window.devicePixelRatio || 1);
    this.canvas = made("canvas", { width: WIDTH * scale, height: HEIGHT * scale });
    this.canvas.setAttribute("aria-label", "a policy at work");
    this.context = this.canvas.getContext("2d");
    this.context.scale(scale, scale);
    this.pen = penOf(this.context);
    this.told = made("p", { className: "gallery-told" });
    this.told.setAttribute("aria-live", "off");
    this.receipt = made("div", { className: "gallery-receipt" });
    this.running = made("button", { type: "button", className: "md-button", onclick: () => this.pause(!this.paused) });
    const again = made("button", { type: "button", className: "md-button", onclick: () => this.begin() }, "Begin anew");
    this.choice = made("select", { onchange: () => this.show(policies[this.choice.selectedIndex]) });
    this.choice.setAttribute("aria-label", "policy");
    this.choice.append(...policies.map((one) => made("option", { value: one.name }, `${one.title}: ${one.name}`)));
    const controls = made("div", { className: "gallery-controls" }, this.choice, this.running, again);
    place.replaceChildren(controls, this.canvas, this.told, this.receipt);
    this.canvas.onclick = (event) => this.clicked(event);
    this.pause(matchMedia("(prefers-reduced-motion: reduce)").matches);
  }

  pause(paused) {
    this.paused = paused;
    this.running.textContent = paused ? "Run" : "Pause";
    if (!paused) this.loop();
  }

  async show(entry) {
    const showing = (this.showing = {});
    this.game = null;
    this.told.textContent = "Loading …";
    const world = await import(address(`./worlds/${entry.world}.js`));
    const policy = await loadPolicy(entry.inputs, address(`./policies/${entry.file}`));
    if (this.showing !== showing) return; // another one was chosen meanwhile
    this.entry = entry;
    this.returns = [];
    this.game = new Game(world, policy, randomOf(Date.now()));
    this.receipt.replaceChildren(...receiptOf(entry));
    this.begin();
    place.dataset.shown = entry.name;
    this.loop();
  }

  begin() {
    if (!this.game) return;
    this.game.begin();
    this.mine = false; // of two players, the reader begins
    this.draw();
  }

  draw() {
    const style = getComputedStyle(place), { game } = this;
    const look = { width: WIDTH, height: HEIGHT, ink: style.getPropertyValue("--md-default-fg-color") || style.color };
    look.strong = "#2563eb";
    look.soft = "#93a4bf";
    this.context.clearRect(0, 0, WIDTH, HEIGHT);
    game.world.draw(this.pen, game.state, look);
    const ended = this.returns.length ? `; episodes before: ${this.returns.slice(-5).map(short).join(", ")}` : "";
    this.told.textContent = game.world.players
      ? this.saidOfGame()
      : `step ${game.frames}, return ${short(game.total)}${ended}`;
    place.dataset.frames = game.frames;
  }

  saidOfGame() {
    const { over, state } = this.game;
    if (!over) return "You are blue and move next: click where your stone goes.";
    if (!state.line) return "A draw. Click for another game.";
    return state.turn === 2 ? "You have won. Click for another game." : "The policy has won. Click for another game.";
  }

  // One loop for each policy that is shown; it ends when it is paused or another one is.
  loop() {
    const { game, entry } = this;
    if (!game || game.world.players || this.looping === game) return;
    this.looping = game;
    let due = performance.now();
    const frame = async (now) => {
      if (this.paused || this.game !== game) {
        if (this.looping === game) this.looping = null;
        return;
      }
      const waited = now < due;
      while (now >= due && this.game === game) {
        due = Math.max(due + 1000 / entry.steps_per_s, now - 100);
        if (game.over) {
          this.returns.push(game.total);
          due = now + 600;
          game.begin();
        } else await game.next();
      }
      if (!waited && this.game === game) this.draw();
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  async clicked(event) {
    const { game } = this;
    if (!game?.world.players || this.thinking) return;
    if (game.over) return this.begin();
    const box = this.canvas.getBoundingClientRect(), ratio = WIDTH / box.width;
    const look = { width: WIDTH, height: HEIGHT };
    const move = game.world.actionAt((event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio, look);
    if (!game.world.allowed(game.state)[move]) return;
    this.thinking = true;
    await game.next(move);
    if (!game.over) await game.next();
    this.thinking = false;
    this.draw();
  }
}

const short = (number) => String(Math.round(number * 10) / 10);

function receiptOf({ name, receipt }) {
  const row = (what, value) => [made("dt", {}, what), made("dd", {}, value)];
  const code = (text) => made("code", {}, text);
  return [
    made(
      "dl",
      {},
      ...row("return", receipt.reached),
      ...row("trained by", code(receipt.command)),
      ...row("revision", code(receipt.revision)),
      ...row("weights", code(`sha256 ${receipt.weights_sha256}`)),
      ...row("in Palaestra", code(`palaestra pull zoo:${name}`)),
      ...(receipt.row ? row("train it again", code(`palaestra verify ${receipt.row}`)) : []),
    ),
    made("img", { src: address(`./policies/${receipt.curve}`), alt: `learning curve of ${name}`, loading: "lazy" }),
  ];
}

try {
  const answer = await fetch(address("./policies/policies.json"));
  if (!answer.ok) throw new Error(`policies.json: ${answer.status}`);
  const policies = await answer.json(), stage = new Stage(policies);
  const named = policies.findIndex((one) => one.name === decodeURIComponent(location.hash.slice(1)));
  stage.choice.selectedIndex = Math.max(0, named);
  await stage.show(policies[stage.choice.selectedIndex]);
} catch (error) {
  place.replaceChildren(made("p", {}, `The policies cannot be shown here (${error.message}). \`make docs\` puts them beside the page.`));
}
