"""Numbers that compiled code takes for constants, and that algorithms of the user's change."""

import copy
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from palaestra.algorithms import PPO, TD3, BonusConfig
from palaestra.algorithms.compiled_steps import Constants
from palaestra.algorithms.exploration_bonus import LearnedReward
from palaestra.nn import NetworkConfig, fast
from tests.algorithms.parts import collected, collector_for


class Annealed(PPO):
    """Whose loss has a weight that falls with each update."""

    beta = 1.0

    def losses(self, batch):
        losses = super().losses(batch)
        return losses._replace(metrics={**losses.metrics, "beta": torch.tensor(self.beta)})

    def after_update(self, batch):
        self.beta /= 2


class AnnealedFaster(Annealed):
    """With each gradient step."""

    after_update = None

    def after_step(self):
        self.beta /= 2


class Delayed(TD3):
    """With loss terms that are due at times."""


class Same(PPO):
    """Changes nothing."""


class Fading(LearnedReward):
    """A learned reward whose loss has a weight that falls with each update."""

    share = 1.0

    def __init__(self, config, observation_spec, action_spec):
        super().__init__(config, observation_spec)
        self.trained["level"] = torch.nn.Linear(1, 1)

    def rewards(self, rows, valid):
        self.share /= 2
        return torch.zeros_like(valid)

    def losses(self, rows):
        level = self.trained["level"](torch.ones(1, 1))
        return self.share * level.square().expand(len(rows["action"]), 1)[:, 0]


class Owner:
    """Of a method that is really compiled."""

    gain = 2.0

    def __init__(self):
        self.beta, self.table, self.pair, self.weight = 0.5, {"x": 0.25}, (1.0, 2.0), torch.ones(3)

    def scaled(self, x):
        return self.weight * x * (self.beta * self.gain * self.table["x"] * self.pair[1])


@pytest.fixture
def frozen(monkeypatch):
    """What would be compiled goes on with the numbers of then; gives what it depends on, and what is made."""
    said = SimpleNamespace(paths=["self.model", "G['x'].y", "self.beta"], made=[])

    def compiled_method(owner, method, example, changed, checked):
        assert not any(checked([SimpleNamespace(guard_type="CONSTANT_MATCH", name=path) for path in said.paths]))
        said.made.append(method.__name__)
        return partial(method, copy.copy(owner))

    monkeypatch.setattr("palaestra.algorithms.compiled_steps.compiled_method", compiled_method)
    return said


def own(kind, name="ppo", action="discrete", **settings):
    """An algorithm of a class of one's own, and what it learns from."""
    algorithm, collector = collected(name, action, **settings)
    made = kind(collector.env.observation_spec, collector.env.action_spec, algorithm.config)
    return made, collector_for(collector.env, made)


def learned(algorithm, collector, updates=4):
    """The mean of the weight over each update."""
    found = []
    for _ in range(updates):
        collector.unroll(12)
        found.append(algorithm.update(collector.source).metrics.get("beta"))
    return found


@pytest.mark.parametrize("kind", [Annealed, AnnealedFaster])
def test_a_number_that_changes_counts_and_ends_compiled_code(kind, frozen, caplog):
    plain, steps = own(kind), own(kind)
    steps[0].compile()
    assert learned(*steps) == learned(*plain)
    assert caplog.text.count(f"{kind.__name__}.beta has changed, which compiled code takes for a constant") == 1
    assert "one_step" in frozen.made


def test_a_number_of_an_own_bonus_counts_and_ends_compiled_code(frozen, caplog):
    frozen.paths = ["self.bonus.share"]
    algorithm, collector = collected("ppo", "discrete", bonus=BonusConfig(kind=Fading))
    algorithm.compile()
    learned(algorithm, collector)
    assert "PPO.bonus.share has changed" in caplog.text and algorithm.stays_eager


@pytest.mark.parametrize("first", [False, True])
def test_a_resumed_run_stays_without_compiled_code(first, frozen, caplog):
    """Whether it is compiled before or after its checkpoint is loaded."""
    algorithm, collector = own(Annealed)
    algorithm.compile()
    assert "stays_eager" not in algorithm.state_tensors()
    learned(algorithm, collector, updates=1)
    twin, rows = own(Annealed)
    if first:
        twin.compile()
    twin.load_state_tensors(algorithm.state_tensors())
    if not first:
        twin.compile()
    frozen.made.clear()
    learned(twin, rows)
    assert frozen.made == []


def test_terms_that_are_due_at_times_need_no_other_code(frozen, caplog):
    frozen.paths = ["self.num_gradient_steps", "self.term_periods['actor']"]
    algorithm, collector = own(Delayed, "td3", "continuous")
    algorithm.compile()
    learned(algorithm, collector)
    assert not algorithm.stays_eager and caplog.text == ""


def test_what_the_library_holds_is_not_looked_at(frozen):
    """Numbers change that nothing depends on, and looking takes time."""
    frozen.paths = ["self.num_gradient_steps"]
    algorithm, collector = collected("ppo", "discrete")
    algorithm.compile()
    learned(algorithm, collector)
    assert not algorithm.stays_eager


@pytest.mark.slow
@pytest.mark.skipif(not fast.can_compile(), reason="this PyTorch cannot")
def test_an_own_class_that_changes_no_number_stays_compiled(caplog, unchecked_shapes, monkeypatch):
    """Really compiled."""
    noted, note = [], Constants.note
    monkeypatch.setattr(Constants, "note", lambda self, guards: noted.extend(guards) or note(self, guards))
    algorithm, collector = own(Same, network=NetworkConfig(hidden_sizes=(8,)))
    algorithm.compile()
    learned(algorithm, collector, updates=3)
    assert noted and not algorithm.stays_eager and "has changed" not in caplog.text


@pytest.mark.skipif(not fast.can_compile(), reason="this PyTorch cannot")
@pytest.mark.parametrize("ahead", [True, False])
def test_what_pytorch_takes_for_constants_is_found(ahead, monkeypatch):
    """Of the object, of its class, inside of what it holds; a tensor is none. Also where guards are kept."""
    if not ahead:
        monkeypatch.setattr(fast, "_compiles_ahead", lambda: False)
    owner, x = Owner(), torch.ones(3)
    constants = Constants(owner, [owner])
    graph = fast.compiled_method(owner, Owner.scaled, x, checked=constants.note)
    graph(x)
    owner.weight.fill_(3.0)
    torch.testing.assert_close(graph(x), owner.scaled(x))
    assert constants.changed() == ""
    changes = {"beta": 0.7, "gain": 3.0, "table": {"x": 0.5}, "pair": (1.0, 3.0)}
    for name, value in changes.items():
        before = getattr(owner, name)
        setattr(owner, name, value)
        assert constants.changed() == {"table": "table['x']", "pair": "pair[1]"}.get(name, name)
        setattr(owner, name, before)
        assert constants.changed() == ""
