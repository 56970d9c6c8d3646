"""Planning: a tree search for many roots at once, with any model of the task."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

__all__ = ["NOT_ALLOWED", "Expansion", "SearchResult", "SearchSettings", "gumbel_search"]

States = dict[str, Tensor]
NOT_ALLOWED = -1e9
"""The logit of an action that is not allowed."""
_NEVER = -1e30


class Expansion(NamedTuple):
    """What a model says about states, and about the actions that led there."""

    reward: Tensor
    """[B] of the action; 0 at a root."""
    discount: Tensor
    """[B] what the value of the state counts for whoever acted: gamma; 0 where the task is over; negative where the
    other player moves next, whose gain is a loss."""
    logits: Tensor
    """[B, A] of the policy there; actions that are not allowed have `NOT_ALLOWED`."""
    value: Tensor
    """[B] of the state, units of return."""
    state: States
    """All that the model needs to go on from there, leaves [B, ...]."""


_VISIT_OFFSET = 50.0
"""The least weight of a difference of value, as a number of visits: c_visit of the paper."""


class SearchSettings(NamedTuple):
    """Size of the search."""

    num_simulations: int = 32
    """Calls of the model."""
    num_considered: int = 16
    """Most actions of the root that are tried."""
    value_scale: float = 0.1
    """How much differences of value count beside the logits."""
    least_range: float = 0.0
    """Differences of value of a state's actions fill [0, 1] from here on, units of return; smaller ones fill less."""


class SearchResult(NamedTuple):
    """Results of a search, for every root."""

    action: Tensor
    """[B] the best."""
    policy: Tensor
    """[B, A] probabilities of the improved policy, which a network learns."""
    value: Tensor
    """[B] of the root under that policy, units of return."""


def gumbel_search(
    root: Expansion,
    expand: Callable[[States, Tensor], Expansion],
    settings: SearchSettings,
    gumbel: Tensor | None = None,
) -> SearchResult:
    """Searches B trees side by side: sequential halving at the root, and below it the improved policy.

        a* = argmax over the most visited a of g(a) + logits(a) + σ(q(a))
        π' = softmax(logits + σ(q)),   below the root  argmax π'(a) − N(a) / (1 + Σ N)
        σ(q) = value_scale (50 + max N) q̂,   q̂ is q brought to [0, 1] over the actions of a state
        (not all of it, where the values differ by less than `least_range`)

    Danihelka et al. 2022, "Policy improvement by planning with Gumbel", https://openreview.net/forum?id=bERaNdoegnO,
    algorithm 2, and equations (8), (11) and (14); an action that was not tried counts as the mixed value of appendix D.
    Which actions survive a halving shows only when they have their turn, by what is known then.

    Args:
        root: where to begin.
        expand: the model: states and actions [B] to what they lead to. It is called once in a simulation.
        settings: how much is searched.
        gumbel: [B, A] g, standard Gumbel noise, so that the action is drawn; `None` is none: the best action.

    Examples:
        >>> def expand(state, action):  # two steps; only the action 1 in both pays
        ...     steps, paid = state["steps"] + 1, state["paid"] * action
        ...     over = (steps == 2).float()
        ...     after = {"steps": steps, "paid": paid}
        ...     return Expansion(paid * over, 1 - over, torch.zeros(1, 2), torch.zeros(1), after)
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> root = Expansion(zero, one, torch.zeros(1, 2), zero, {"steps": zero, "paid": one})
        >>> gumbel_search(root, expand, SearchSettings(16)).action
        tensor([1])
    """
    tree = _Tree(root, settings)
    logits = root.logits
    noisy = logits if gumbel is None else logits + gumbel
    allowed = logits > NOT_ALLOWED
    most = min(settings.num_considered, logits.shape[-1])
    table = torch.tensor(_visits(most, settings.num_simulations), device=logits.device)
    plan = table[allowed.sum(-1).clamp(max=most)]  # [B, S]
    at_root = tree.values_at(tree.roots)
    for simulation in range(settings.num_simulations):
        score = torch.where(at_root.visits == plan[:, simulation, None], noisy + at_root.scaled, _NEVER)
        node, action, path = tree.descend(score.argmax(-1))
        leaf = expand({name: leaves[node] for name, leaves in tree.states.items()}, action)
        tree.add(simulation + 1, node, action, leaf)
        at_root = tree.back_up(path, leaf.value)
    policy = (logits + at_root.scaled).softmax(-1)
    visits = torch.where(allowed, at_root.visits, -1.0)
    best = torch.where(visits == visits.amax(-1, keepdim=True), noisy + at_root.scaled, _NEVER).argmax(-1)
    return SearchResult(best, policy, (policy * at_root.value).sum(-1))


@functools.cache
def _visits(most: int, num_simulations: int) -> list[list[float]]:
    """By the number of actions to consider, up to `most`, and the simulation: visits of the root's actions to try next.

    Sequential halving: every action that is considered gets as many visits, then the worse half is dropped.
    """
    table = [[float(s) for s in range(num_simulations)]] * 2
    for num in range(2, most + 1):
        row: list[float] = []
        phases, considered, done = math.ceil(math.log2(num)), num, [0] * num
        while len(row) < num_simulations:
            for _ in range(max(1, num_simulations // (phases * considered))):
                row += [float(count) for count in done[:considered]]
                done[:considered] = [count + 1 for count in done[:considered]]
            considered = max(2, considered // 2)
        table.append(row[:num_simulations])
    return table[: most + 1]


class _Known(NamedTuple):
    """Statistics of the actions of N states; fields [N, A]."""

    visits: Tensor
    value: Tensor
    """Of actions that were not tried the mixed value."""
    scaled: Tensor
    """σ of the values."""


class _Path(NamedTuple):
    """One level of the way down, for every tree."""

    edge: Tensor
    """[B] state and action as one index."""
    node: Tensor
    """[B] the state."""
    weight: Tensor
    """[B] 1 where the way goes through it; 0 where it has ended before."""


@final
class _Tree:
    """B trees of at most S + 1 states. The state n of tree b has the index b (S + 1) + n; an edge, that times A + a."""

    def __init__(self, root: Expansion, settings: SearchSettings) -> None:
        batch, self.num_actions = root.logits.shape
        size, self.settings = settings.num_simulations + 1, settings
        count, device = batch * size, root.value.device
        self.roots = torch.arange(batch, device=device) * size
        self.logits, self.probs = (root.logits.new_zeros(count, self.num_actions) for _ in range(2))
        self.value = root.value.new_zeros(count)
        self.best = torch.zeros(count, dtype=torch.int64, device=device)
        edges = count * self.num_actions
        self.child = torch.full((edges,), -1, dtype=torch.int64, device=device)
        self.reward, self.discount, self.visits, self.returns = (root.value.new_zeros(edges) for _ in range(4))
        self.states = {name: leaf.new_zeros(count, *leaf.shape[1:]) for name, leaf in root.state.items()}
        self._put(self.roots, root)

    def _put(self, nodes: Tensor, found: Expansion) -> None:
        self.logits[nodes], self.probs[nodes], self.value[nodes] = found.logits, found.logits.softmax(-1), found.value
        self.best[nodes] = found.logits.argmax(-1)
        for name, leaf in found.state.items():
            self.states[name][nodes] = leaf

    def descend(self, action: Tensor) -> tuple[Tensor, Tensor, list[_Path]]:
        """From the roots with these actions to edges that lead to no state yet.

        Args:
            action: [B] of the roots.
        """
        node, weight, path = self.roots, torch.ones_like(self.value[self.roots]), list[_Path]()
        while True:
            edge = node * self.num_actions + action
            path.append(_Path(edge, node, weight))
            child = self.child[edge]
            goes = child >= 0
            if not goes.any():
                return node, action, path
            node = torch.where(goes, child, node)
            action = torch.where(goes, self.best[node], action)
            weight = goes.to(weight.dtype)

    def add(self, number: int, node: Tensor, action: Tensor, leaf: Expansion) -> None:
        """New states below the ones that were reached.

        Args:
            number: of the new states in their trees.
            node: [B] where from.
            action: [B] by which action.
            leaf: what the model says.
        """
        edge = node * self.num_actions + action
        self.child[edge] = self.roots + number
        self.reward[edge], self.discount[edge] = leaf.reward, leaf.discount
        self._put(self.roots + number, leaf)

    def back_up(self, path: list[_Path], value: Tensor) -> _Known:
        """Adds what the leaves are worth to all edges on the way, and chooses anew what to try there.

        Args:
            path: from `descend`.
            value: [B] of the leaves.

        Returns:
            What is known of the roots now.
        """
        num = len(value)
        for edge, _, weight in reversed(path):
            gain = torch.addcmul(self.reward[edge], self.discount[edge], value)
            value = torch.where(weight > 0, gain, value)
            self.visits.index_add_(0, edge, weight)
            self.returns.index_add_(0, edge, weight * gain)
        nodes = torch.cat([level.node for level in path])
        known = self.values_at(nodes)
        if len(path) > 1:  # what the roots try next is not for the tree to say
            below, visits = nodes[num:], known.visits[num:]
            share = visits / (1 + visits.sum(-1, keepdim=True))
            wanted = (self.logits[below] + known.scaled[num:]).softmax(-1) - share
            self.best[below] = wanted.argmax(-1)
        return _Known(*(field[:num] for field in known))

    def values_at(self, nodes: Tensor) -> _Known:
        """Statistics of the actions of states.

        Args:
            nodes: [N].
        """
        visits = self.visits.view(-1, self.num_actions)[nodes]
        q = self.returns.view(-1, self.num_actions)[nodes] / visits.clamp(min=1)
        tried, total = visits > 0, visits.sum(-1, keepdim=True)
        prior = torch.where(tried, self.probs[nodes], 0.0)
        weight = prior / prior.sum(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        mixed = (self.value[nodes].unsqueeze(-1) + total * (weight * q).sum(-1, keepdim=True)) / (1 + total)
        q = torch.where(tried, q, mixed)
        low, high = q.amin(-1, keepdim=True), q.amax(-1, keepdim=True)
        scale = self.settings.value_scale * (_VISIT_OFFSET + visits.amax(-1, keepdim=True))
        return _Known(visits, q, scale * (q - low) / (high - low).clamp(min=max(1e-8, self.settings.least_range)))
