"""Linear programs: the least shortage possible with known demand, and a rolling plan that knows averages only.

Both are the same program. Its variables are flows of containers in time: orders filled, goods loaded, empty containers
put ashore or taken aboard, stocks. It minimises what the stock lacks:

    min  sum over trades k and ticks t of (orders[k, t] - filled[k, t])

    stock[p, t]   = stock[p, t-1] + back[p, t] + ashore[calls at p, t] - aboard[calls at p, t] - filled[k from p, t]
    waiting[k, t] = waiting[k, t-1] + filled[k, t] - loaded[k, calls at t]
    goods + empties of a vessel <= capacity after every call;  all variables >= 0

Whatever the simulator does satisfies these equations when orders, delays and returns are those of the tape, so the
optimum is a lower bound of the shortage of every policy: one that knows the future, may leave goods behind for empty
containers, and may split a container.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from examples.inventory.simulator import Simulator
from examples.inventory.tape import Tape
from examples.inventory.topology import Topology


class Stop(NamedTuple):
    """A call of a vessel that lies ahead."""

    tick: int
    vessel: int
    port: int
    loads: bool
    """Whether goods are still to be loaded and unloaded: not at the call that waits for its decision."""


@dataclass(frozen=True)
class Situation:
    """Where everything is, and what is expected from here on."""

    topology: Topology
    first: int
    """Tick at which the plan begins."""
    orders: np.ndarray
    """[tick, trade] expected from `first` on; its length is the horizon."""
    stops: list[Stop]
    """By time."""
    stock: Sequence[int]
    waiting: Sequence[int]
    goods: Sequence[Sequence[int]]
    empties: Sequence[int]
    back: np.ndarray
    """[port, tick] containers already unloaded that are expected back, by ticks from `first` on."""
    return_ticks: Callable[[int, int], int]
    """(port, tick) -> ticks until what is unloaded there and then is back."""


class Plan(NamedTuple):
    """The optimum."""

    shortage: float
    ashore: np.ndarray
    """[stop] empty containers put ashore at each stop; taken aboard if negative."""


class _Program:
    """A sparse linear program put together row by row."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.upper: list[float] = []
        self.entries: dict[str, tuple[list[int], list[int], list[float], list[float]]] = {
            "equal": ([], [], [], []),
            "most": ([], [], [], []),
        }

    def variables(self, count: int, *, cost: float = 0.0, upper: float = np.inf) -> int:
        """Adds variables in [0, upper]; returns the number of the first."""
        self.cost += [cost] * count
        self.upper += [upper] * count
        return len(self.cost) - count

    def row(self, kind: str, terms: Sequence[tuple[int, float]], right: float) -> None:
        """Adds `sum of coefficient * variable` equal to, or at most, `right`."""
        rows, columns, values, rights = self.entries[kind]
        rows.extend([len(rights)] * len(terms))
        for variable, coefficient in terms:
            columns.append(variable)
            values.append(coefficient)
        rights.append(right)

    def solve(self) -> tuple[float, np.ndarray]:
        """The optimum and where it lies."""
        matrices = {}
        for kind, (rows, columns, values, rights) in self.entries.items():
            shape = (len(rights), len(self.cost))
            matrices[kind] = (csr_array((values, (rows, columns)), shape=shape), np.array(rights)) if rights else None
        equal, most = matrices["equal"] or (None, None), matrices["most"] or (None, None)
        bounds = np.stack([np.zeros(len(self.upper)), self.upper], axis=1)
        done = linprog(self.cost, *most, *equal, bounds=bounds, method="highs")
        if done.status != 0:
            raise RuntimeError(f"the linear program was not solved: {done.message}")
        return float(done.fun), done.x


def solve(
    situation: Situation, *, cover: Sequence[float] = (), cover_cost: float = 0.0, move_cost: float = 0.0
) -> Plan:
    """The best plan for what is expected.

    Args:
        situation: where everything is.
        cover: [port] stock that is wanted beyond what is expected to be ordered; none if left out.
        cover_cost: of each container and tick below it, in lost orders.
        move_cost: of putting a container ashore or taking it aboard, in lost orders.
    """
    env, horizon = situation.topology, len(situation.orders)
    ports, trades = range(len(env.ports)), range(len(env.trades))
    program = _Program()
    filled = program.variables(horizon * len(trades), cost=-1.0)
    program.upper[filled:] = situation.orders.ravel().tolist()
    stock = program.variables(horizon * len(ports))
    waiting = program.variables(horizon * len(trades))
    ashore = program.variables(len(situation.stops), cost=move_cost)
    aboard = program.variables(len(situation.stops), cost=move_cost)
    # What comes and goes beside orders: (port or trade, tick) -> terms.
    arriving: dict[tuple[int, int], list[tuple[int, float]]] = {}
    loading: dict[tuple[int, int], list[tuple[int, float]]] = {}
    back = situation.back.astype(float).copy()
    for vessel in range(len(env.vessels)):
        _sail(situation, program, vessel, (ashore, aboard), arriving, loading, back)
    for tick in range(horizon):
        for p in ports:
            terms = [(stock + tick * len(ports) + p, 1.0), *arriving.get((p, tick), ())]
            terms += [(filled + tick * len(trades) + k, 1.0) for k in trades if env.trades[k].origin == p]
            if tick:
                terms.append((stock + (tick - 1) * len(ports) + p, -1.0))
            program.row("equal", terms, back[p, tick] + (0 if tick else situation.stock[p]))
        for k in trades:
            now = waiting + tick * len(trades) + k
            terms = [(now, 1.0), (filled + tick * len(trades) + k, -1.0)]
            gone = loading.get((k, tick), [])
            if tick:
                terms.append((now - len(trades), -1.0))
            program.row("equal", [*terms, *gone], 0 if tick else situation.waiting[k])
            if gone:  # vessels call before orders come in: only what was waiting then can be loaded
                before = [(now - len(trades), -1.0)] if tick else []
                program.row("most", [*gone, *before], 0 if tick else situation.waiting[k])
    if cover_cost:
        lacking = program.variables(horizon * len(ports), cost=cover_cost)
        for tick in range(horizon):
            for p in ports:
                index = tick * len(ports) + p
                program.row("most", [(lacking + index, -1.0), (stock + index, -1.0)], -cover[p])
    _, x = program.solve()
    count = len(situation.stops)
    shortage = float(situation.orders.sum() - x[filled : filled + horizon * len(trades)].sum())
    return Plan(shortage, x[ashore : ashore + count] - x[aboard : aboard + count])


def _sail(
    situation: Situation,
    program: _Program,
    vessel: int,
    moves: tuple[int, int],
    arriving: dict[tuple[int, int], list[tuple[int, float]]],
    loading: dict[tuple[int, int], list[tuple[int, float]]],
    back: np.ndarray,
) -> None:
    """Adds what one vessel does at its stops, and the capacity it has."""
    env, horizon = situation.topology, len(situation.orders)
    empties: list[tuple[int, float]] = []  # aboard, beside those at the beginning
    known = list(situation.goods[vessel])  # aboard since before the plan, by trade
    goods: dict[int, list[int]] = {}  # loaded since, by trade: variables
    for number, stop in enumerate(situation.stops):
        if stop.vessel != vessel:
            continue
        port, now = stop.port, stop.tick - situation.first
        if stop.loads:
            landed = [k for k, trade in enumerate(env.trades) if trade.destination == port]
            then = now + situation.return_ticks(port, stop.tick)
            if then < horizon:
                back[port, then] += sum(known[k] for k in landed)
                terms = arriving.setdefault((port, then), [])
                terms += [(variable, -1.0) for k in landed for variable in goods.get(k, ())]
            for k in landed:
                known[k] = 0
                goods.pop(k, None)
            for k in env.carried[vessel][port]:
                variable = program.variables(1)
                goods.setdefault(k, []).append(variable)
                loading.setdefault((k, now), []).append((variable, 1.0))
        ashore, aboard = moves[0] + number, moves[1] + number
        arriving.setdefault((port, now), []).extend([(ashore, -1.0), (aboard, 1.0)])
        before = list(empties)
        empties += [(ashore, -1.0), (aboard, 1.0)]
        start = situation.empties[vessel]
        program.row("most", [*((v, -c) for v, c in before), (ashore, 1.0)], start)  # no more ashore than aboard
        cargo = [*empties, *((variable, 1.0) for variables in goods.values() for variable in variables)]
        program.row("most", cargo, env.vessels[vessel].capacity - start - sum(known))


def bound(topology: Topology, tape: Tape) -> float:
    """Shortage that no policy can do better than, in containers: everything on the tape is known beforehand.

    Args:
        topology: the environment.
        tape: one episode of it.
    """
    stops = []
    for number, vessel in enumerate(topology.vessels):
        tick, call = vessel.first_call, 0
        while tick < topology.num_ticks:
            stop = call % len(vessel.route)
            stops.append(Stop(tick, number, vessel.route[stop], True))
            tick += vessel.leg_ticks[stop] + int(tape.delays[number, call])
            call += 1
    situation = Situation(
        topology=topology,
        first=0,
        orders=tape.orders.astype(float),
        stops=sorted(stops),
        stock=[port.empty_containers for port in topology.ports],
        waiting=[0] * len(topology.trades),
        goods=[[0] * len(topology.trades) for _ in topology.vessels],
        empties=[0] * len(topology.vessels),
        back=np.zeros((len(topology.ports), topology.num_ticks)),
        return_ticks=lambda port, tick: int(tape.returns[port, tick]),
    )
    return solve(situation).shortage


@dataclass(frozen=True, kw_only=True)
class RollingPlan:
    """At every call: plan ahead with averages, do the plan's first move, forget the rest."""

    horizon: int = 30
    """Ticks to look ahead."""
    cover_ticks: float = 15.0
    """Stock that is wanted in every port beyond the expected, in ticks of its mean orders."""
    cover_cost: float = 0.02
    """Of a container and tick below that, in lost orders."""
    trust: float = 0.5
    """How far recent orders are expected to last, in [0, 1]; 0 expects the average of the season."""
    recent_ticks: int = 8
    """Over which recent orders are averaged."""

    def __call__(self, simulator: Simulator) -> int:
        """Containers to put ashore at the call that waits.

        Args:
            simulator: standing at a call; only what has happened and what is planned is looked at.
        """
        call = simulator.call
        assert call is not None
        orders = self._expected_orders(simulator)
        cover = [0.0] * len(simulator.stock)
        for k, trade in enumerate(simulator.topology.trades):
            cover[trade.origin] += self.cover_ticks * float(orders[:, k].mean())
        situation = expected(simulator, orders)
        plan = solve(situation, cover=cover, cover_cost=self.cover_cost if self.cover_ticks else 0.0, move_cost=1e-3)
        return int(np.clip(round(plan.ashore[0]), -call.most_aboard, call.most_ashore))

    def _expected_orders(self, simulator: Simulator) -> np.ndarray:
        env, now = simulator.topology, simulator.tick
        mean = np.array([[env.mean_orders(k, now + t) for k in range(len(env.trades))] for t in range(self.horizon)])
        if not self.trust or now < self.recent_ticks:
            return mean
        usual = np.array(
            [
                sum(env.mean_orders(k, tick) for tick in range(now - self.recent_ticks, now))
                for k in range(len(env.trades))
            ]
        )
        surprise = simulator.recent_orders(self.recent_ticks) / usual - 1
        # A boom of now ends, sooner or later.
        fading = np.exp(-np.arange(self.horizon)[:, None] / env.boom_ticks)
        return mean * np.maximum(0, 1 + self.trust * surprise * fading)


def expected(simulator: Simulator, orders: np.ndarray) -> Situation:
    """What lies ahead of a simulator that stands at a call, if everything takes its mean time.

    Args:
        simulator: standing at a call.
        orders: [tick, trade] expected from now on.
    """
    env, now, horizon = simulator.topology, simulator.tick, len(orders)
    call = simulator.call
    assert call is not None
    stops = []
    for number, vessel in enumerate(env.vessels):
        if number == call.vessel:
            tick = float(now)
        else:
            leg = vessel.leg_ticks[simulator.stop[number] - 1]
            tick = max(now, simulator.sailed[number] + leg + (env.mean_delay if simulator.sailed[number] >= 0 else 0))
        stop = simulator.stop[number]
        while round(tick) < now + horizon:
            stops.append(Stop(round(tick), number, vessel.route[stop], number != call.vessel or tick > now))
            tick += vessel.leg_ticks[stop] + env.mean_delay
            stop = (stop + 1) % len(vessel.route)
    back = np.zeros((len(env.ports), horizon))
    mean_return = [round(sum(port.return_ticks) / 2) for port in env.ports]
    for p, port in enumerate(env.ports):
        left = simulator.inland[p]
        for tick, quantity in reversed(simulator.unloadings[p]):
            if left <= 0 or tick + port.return_ticks[1] < now:
                break
            still = min(quantity, left)
            then = max(1, tick + mean_return[p] - now)
            if then < horizon:
                back[p, then] += still
            left -= still
    stops.sort(key=lambda s: (s.tick, s.vessel != call.vessel or s.loads, s.vessel))
    return Situation(
        topology=env,
        first=now,
        orders=orders,
        stops=stops,
        stock=simulator.stock,
        waiting=simulator.waiting,
        goods=simulator.goods,
        empties=simulator.empties,
        back=back,
        return_ticks=lambda port, tick: mean_return[port],
    )
