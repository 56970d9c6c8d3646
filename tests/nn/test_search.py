"""Tests of `palaestra.nn.search`: against a plain transcription of the paper for one tree, and known answers."""

import math
from typing import Any

import pytest
import torch

from palaestra.nn import NOT_ALLOWED, Expansion, SearchSettings, gumbel_search

BRANCHES, DEPTH, GAMMA = 3, 3, 0.9


class Bandits:
    """A tree of a known depth: a reward for each path, a policy and a value for each state, drawn once."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = sum(BRANCHES**depth for depth in range(DEPTH + 1))
        self.reward = torch.rand(count, generator=generator)
        self.logits = torch.randn(count, BRANCHES, generator=generator)
        self.value = torch.rand(count, generator=generator)

    def at(self, place: torch.Tensor, reward: torch.Tensor, discount: torch.Tensor) -> Expansion:
        return Expansion(reward, discount, self.logits[place], self.value[place], {"place": place})

    def root(self, batch: int) -> Expansion:
        place = torch.zeros(batch, dtype=torch.int64)
        return self.at(place, torch.zeros(batch), torch.ones(batch))

    def expand(self, state: dict[str, torch.Tensor], action: torch.Tensor) -> Expansion:
        place = (state["place"] * BRANCHES + 1 + action).clamp(max=len(self.value) - 1)
        leaf = place * BRANCHES + 1 >= len(self.value)
        return self.at(place, self.reward[place], torch.where(leaf, 0.0, GAMMA))


class Node:
    """One state of the plain search."""

    def __init__(self, bandits: Bandits, place: int) -> None:
        self.prior = bandits.logits[place].tolist()
        self.value, self.place = float(bandits.value[place]), place
        self.child: dict[int, Any] = {}
        self.edge: dict[int, tuple[float, float]] = {}
        self.visits, self.total = [0] * BRANCHES, [0.0] * BRANCHES

    def completed(self) -> list[float]:
        weight = softmax(self.prior)
        tried = [a for a in range(BRANCHES) if self.visits[a]]
        q = {a: self.total[a] / self.visits[a] for a in tried}
        count = sum(self.visits)
        mean = sum(weight[a] * q[a] for a in tried) / sum(weight[a] for a in tried) if tried else 0.0
        mixed = (self.value + count * mean) / (1 + count)
        return [q.get(a, mixed) for a in range(BRANCHES)]

    def sigma(self, settings: SearchSettings) -> list[float]:
        q = self.completed()
        span = max(max(q) - min(q), settings.least_range, 1e-8)
        scale = settings.value_scale * (50.0 + max(self.visits))
        return [scale * (value - min(q)) / span for value in q]


def softmax(numbers: list[float]) -> list[float]:
    powers = [math.exp(number - max(numbers)) for number in numbers]
    return [power / sum(powers) for power in powers]


def plain(bandits: Bandits, settings: SearchSettings, noise: list[float]) -> tuple[int, list[float], float]:
    """Algorithm 2 of Danihelka et al. for one root, as it is written; who survives shows as its turn comes."""
    root = Node(bandits, 0)

    def simulate(action: int) -> None:
        node, path = root, [(root, action)]
        while action in node.child:
            node = node.child[action]
            improved = softmax([p + s for p, s in zip(node.prior, node.sigma(settings), strict=True)])
            total = sum(node.visits)
            scores = [improved[a] - node.visits[a] / (1 + total) for a in range(BRANCHES)]
            action = scores.index(max(scores))
            path.append((node, action))
        place = torch.tensor([node.place])
        found = bandits.expand({"place": place}, torch.tensor([action]))
        node.child[action] = Node(bandits, int(found.state["place"]))
        node.edge[action] = float(found.reward), float(found.discount)
        value = float(found.value)
        for above, taken in reversed(path):
            reward, discount = above.edge[taken]
            value = reward + discount * value
            above.visits[taken] += 1
            above.total[taken] += value

    def score(action: int) -> float:
        return noise[action] + root.prior[action] + root.sigma(settings)[action]

    considered = settings.num_considered
    phases, used, level = math.ceil(math.log2(considered)), 0, 0
    while used < settings.num_simulations:
        for _ in range(max(1, settings.num_simulations // (phases * considered))):
            for _ in range(min(considered, settings.num_simulations - used)):
                simulate(max((a for a in range(BRANCHES) if root.visits[a] == level), key=score))
                used += 1
            level += 1
        considered = max(2, considered // 2)
    policy = softmax([p + s for p, s in zip(root.prior, root.sigma(settings), strict=True)])
    most = max(root.visits)
    action = max((a for a in range(BRANCHES) if root.visits[a] == most), key=score)
    return action, policy, sum(p * q for p, q in zip(policy, root.completed(), strict=True))


@pytest.mark.parametrize(("num_simulations", "least_range"), [(1, 0.0), (4, 0.0), (9, 0.0), (24, 0.0), (24, 3.0)])
@pytest.mark.parametrize("seed", range(4))
def test_every_tree_of_a_batch_is_that_of_the_paper(seed, num_simulations, least_range):
    bandits, settings = Bandits(seed), SearchSettings(num_simulations, BRANCHES, least_range=least_range)
    gumbel = torch.randn(5, BRANCHES, generator=torch.Generator().manual_seed(seed))
    found = gumbel_search(bandits.root(5), bandits.expand, settings, gumbel)
    for lane in range(5):
        action, policy, value = plain(bandits, settings, gumbel[lane].tolist())
        assert int(found.action[lane]) == action
        assert found.policy[lane].tolist() == pytest.approx(policy, rel=1e-4, abs=1e-6)
        assert float(found.value[lane]) == pytest.approx(value, rel=1e-4)


def best_return(bandits: Bandits, place: int = 0) -> list[float]:
    """The best return after each action."""
    children = [place * BRANCHES + 1 + action for action in range(BRANCHES)]
    if children[-1] >= len(bandits.value):
        return [0.0]
    return [float(bandits.reward[child]) + GAMMA * max(best_return(bandits, child)) for child in children]


def test_searching_loses_far_less_than_the_policy_alone():
    """Over many trees; values are means of what was tried, so the smallest differences stay hidden."""
    lost, lost_alone = 0.0, 0.0
    for seed in range(20):
        bandits = Bandits(seed)
        returns = best_return(bandits)
        found = gumbel_search(bandits.root(1), bandits.expand, SearchSettings(64, BRANCHES))
        lost += max(returns) - returns[int(found.action)]
        lost_alone += max(returns) - returns[int(bandits.logits[0].argmax())]
    assert lost < 0.4 * lost_alone, (lost, lost_alone)


@pytest.mark.parametrize("num_considered", [1, 2, 3])
def test_no_more_actions_are_tried_than_are_considered_and_none_that_is_not_allowed(num_considered):
    bandits, tried = Bandits(0), set()

    def expand(state: dict[str, torch.Tensor], action: torch.Tensor) -> Expansion:
        tried.update(action[state["place"] == 0].tolist())
        return bandits.expand(state, action)

    root = bandits.root(4)
    root = root._replace(logits=torch.tensor([[0.0, NOT_ALLOWED, 1.0]]).repeat(4, 1))
    found = gumbel_search(root, expand, SearchSettings(12, num_considered))
    assert len(tried) == min(num_considered, 2)
    assert 1 not in tried
    assert found.policy[:, 1].tolist() == [0.0] * 4


def test_the_gain_of_the_other_player_is_a_loss():
    """Two moves: the first action lets the other one win, the second does not."""

    def expand(state: dict[str, torch.Tensor], action: torch.Tensor) -> Expansion:
        moves, careless = state["moves"] + 1, torch.where(state["moves"] == 0, action == 0, state["careless"])
        over = moves == 2
        reward = (over & careless & (action == 1)).float()
        return Expansion(
            reward,
            torch.where(over, 0.0, -1.0),
            torch.zeros(1, 2),
            torch.zeros(1),
            {"moves": moves, "careless": careless},
        )

    start = {"moves": torch.zeros(1, dtype=torch.int64), "careless": torch.zeros(1, dtype=torch.bool)}
    root = Expansion(torch.zeros(1), torch.ones(1), torch.tensor([[1.0, 0.0]]), torch.zeros(1), start)
    found = gumbel_search(root, expand, SearchSettings(32, value_scale=1.0))
    assert found.action.tolist() == [1]


def test_noise_draws_the_action_as_the_policy_would_where_nothing_is_known():
    """With one simulation and equal values, the first of the Gumbel-top-k is a sample of the policy."""
    logits = torch.tensor([0.0, 1.0, 2.0])

    def expand(state: dict[str, torch.Tensor], action: torch.Tensor) -> Expansion:
        count = len(action)
        return Expansion(torch.zeros(count), torch.zeros(count), torch.zeros(count, 3), torch.zeros(count), state)

    count = 4000
    root = Expansion(
        torch.zeros(count), torch.ones(count), logits.repeat(count, 1), torch.zeros(count), {"s": torch.zeros(count)}
    )
    uniform = torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    found = gumbel_search(root, expand, SearchSettings(1, 3), -(-uniform.log()).log())
    share = torch.bincount(found.action, minlength=3) / count
    torch.testing.assert_close(share, logits.softmax(-1), atol=0.03, rtol=0)
