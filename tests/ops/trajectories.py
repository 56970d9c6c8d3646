"""Trajectories to test on, and each equation of `palaestra.ops` written out as the sum in its paper.

The references walk one lane with plain Python numbers, take O(T²) steps or more, and share nothing with the library.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

FIRST, MID, LAST = 0, 1, 2
GAMMA = 0.9


class Trajectory(NamedTuple):
    """Arguments of the functions of time; every field is [T+1, B]."""

    value: Tensor
    reward: Tensor
    discount: Tensor
    step_type: Tensor


def table() -> Trajectory:
    """One lane with every row of the episode-end table, and numbers that are easy to tell apart.

    Row 2 is terminated, row 5 truncated, row 7 a broken fragment; the unroll ends at row 10, in mid-episode.
    """
    step_type = torch.tensor([FIRST, MID, LAST, FIRST, MID, LAST, FIRST, MID, FIRST, MID, MID], dtype=torch.int32)
    discount = torch.full((11,), GAMMA, dtype=torch.float64)
    discount[2] = 0.0
    value = torch.arange(1, 12, dtype=torch.float64) * 10
    reward = torch.tensor([0, 1, 2, 0, 3, 4, 0, 5, 0, 6, 7], dtype=torch.float64)
    return Trajectory(*(x.unsqueeze(-1) for x in (value, reward, discount, step_type)))


def random_trajectory(seed: int, num_steps: int, num_lanes: int, *, breaks: bool = True) -> Trajectory:
    """Legal streams with short episodes: terminated, truncated and, with `breaks`, broken ones."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps + 1, num_lanes)
    draw = torch.rand(shape, generator=generator)
    step_type = torch.empty(shape, dtype=torch.int32)
    previous = torch.where(torch.rand(num_lanes, generator=generator) < 0.3, LAST, MID)
    for t in range(num_steps + 1):
        ended = previous == LAST
        broken = ~ended & (draw[t] < 0.1) if breaks else torch.zeros_like(ended)
        previous = torch.where(ended | broken, FIRST, torch.where(draw[t] < 0.3, LAST, MID))
        step_type[t] = previous
    terminated = (step_type == LAST) & (torch.rand(shape, generator=generator) < 0.5)
    discount = (0.5 + 0.5 * torch.rand(shape, generator=generator, dtype=torch.float64)) * ~terminated
    reward = torch.randn(shape, generator=generator, dtype=torch.float64) * (step_type != FIRST)
    return Trajectory(torch.randn(shape, generator=generator, dtype=torch.float64), reward, discount, step_type)


def ignoring_ends(trajectory: Trajectory) -> Trajectory:
    """The mutant that sees one endless episode: what follows a LAST or a FIRST flows into what is before it."""
    return trajectory._replace(step_type=torch.full_like(trajectory.step_type, MID))


def truncation_as_termination(trajectory: Trajectory) -> Trajectory:
    """The mutant of most code bases: a time limit counts as the end of the world."""
    return trajectory._replace(discount=trajectory.discount * (trajectory.step_type != LAST))


def termination_as_truncation(trajectory: Trajectory) -> Trajectory:
    """The opposite mutant: an episode that terminated bootstraps from its final observation."""
    return trajectory._replace(discount=torch.where(trajectory.discount == 0, GAMMA, trajectory.discount))


def startable(step_type: list[int], t: int) -> bool:
    """Whether row t of a lane may be learned from."""
    return step_type[t] != LAST and step_type[t + 1] != FIRST


def horizon(step_type: list[int], t: int) -> int:
    """Steps from valid row t to the first row that may not be learned from, or to the end of the lane."""
    end = t
    while end + 1 < len(step_type) and startable(step_type, end):
        end += 1
    return end - t


def lanes(*arrays: Tensor) -> list[tuple[list, ...]]:
    """The arrays' columns as Python lists, one tuple for each lane."""
    return [tuple(array[:, lane].tolist() for array in arrays) for lane in range(arrays[0].shape[1])]


def columns(rows: list[list[float]]) -> Tensor:
    """Lanes given as lists, as a [T, B] tensor."""
    return torch.tensor(rows, dtype=torch.float64).T


def n_step_sum(value: list, reward: list, discount: list, t: int, k: int) -> float:
    """Sutton and Barto 2018, equation (7.1), over exactly k steps."""
    total, factor = 0.0, 1.0
    for i in range(1, k + 1):
        total += factor * reward[t + i]
        factor *= discount[t + i]
    return total + factor * value[t + k]


def n_step_reference(trajectory: Trajectory, n: int) -> Tensor:
    """n-step returns of every row; the value itself where a row is no valid start."""
    return columns(
        [
            [n_step_sum(v, r, d, t, min(n, horizon(s, t))) if startable(s, t) else v[t] for t in range(len(v) - 1)]
            for v, r, d, s in lanes(*trajectory)
        ]
    )


def lambda_reference(trajectory: Trajectory, lambda_: float) -> Tensor:
    """Sutton and Barto 2018, equation (12.3): (1 - λ) Σ λⁿ⁻¹ G⁽ⁿ⁾ + λʰ⁻¹ G⁽ʰ⁾, a mean of n-step returns."""
    result = []
    for v, r, d, s in lanes(*trajectory):
        lane = []
        for t in range(len(v) - 1):
            if not startable(s, t):
                lane.append(v[t])
                continue
            h = horizon(s, t)
            mean = sum((1 - lambda_) * lambda_ ** (n - 1) * n_step_sum(v, r, d, t, n) for n in range(1, h))
            lane.append(mean + lambda_ ** (h - 1) * n_step_sum(v, r, d, t, h))
        result.append(lane)
    return columns(result)


def gae_reference(trajectory: Trajectory, lambda_: float) -> Tensor:
    """Schulman et al. 2016, equation (16): Σ (γλ)ˡ δₜ₊ₗ, with a discount per step."""
    result = []
    for v, r, d, s in lanes(*trajectory):
        lane = []
        for t in range(len(v) - 1):
            total, factor = 0.0, 1.0
            for i in range(t, t + horizon(s, t)):
                total += factor * (r[i + 1] + d[i + 1] * v[i + 1] - v[i])
                factor *= lambda_ * d[i + 1]
            lane.append(total)
        result.append(lane)
    return columns(result)


def vtrace_reference(
    trajectory: Trajectory, log_ratio: Tensor, *, rho_clip: float, c_clip: float, lambda_: float
) -> tuple[Tensor, Tensor]:
    """Espeholt et al. 2018, equation (1): V + Σ γᵗ⁻ˢ (Π c) δ; and the advantages of its section 4.2."""
    targets, advantages = [], []
    for v, r, d, s, log in lanes(*trajectory[:4], torch.cat((log_ratio, log_ratio[-1:]))):
        ratio = [math.exp(x) for x in log]
        target, advantage = [], []
        for start in range(len(v) - 1):
            total, factor = v[start], 1.0
            for i in range(start, start + horizon(s, start)):
                total += factor * min(rho_clip, ratio[i]) * (r[i + 1] + d[i + 1] * v[i + 1] - v[i])
                factor *= d[i + 1] * lambda_ * min(c_clip, ratio[i])
            target.append(total)
        target.append(v[-1])
        for t in range(len(v) - 1):
            following = lambda_ * target[t + 1] + (1 - lambda_) * v[t + 1]
            gain = min(rho_clip, ratio[t]) * (r[t + 1] + d[t + 1] * following - v[t])
            advantage.append(gain if startable(s, t) else 0.0)
        targets.append(target[:-1])
        advantages.append(advantage)
    return columns(targets), columns(advantages)


def n_step_window_reference(reward: Tensor, discount: Tensor, step_type: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reward sum, discount product and length of windows whose row 0 is a valid start."""
    rewards, discounts, steps = [], [], []
    for r, d, s in lanes(reward, discount, step_type):
        k = horizon(s, 0)
        rewards.append(n_step_sum([0.0] * len(r), r, d, 0, k))
        discounts.append(torch.tensor(d[1 : k + 1], dtype=torch.float64).prod().item())
        steps.append(k)
    return torch.tensor(rewards), torch.tensor(discounts), torch.tensor(steps)
