"""Tests of `palaestra.algorithms.ppg`."""

import pytest
import torch
from torch.testing import assert_close

from palaestra.algorithms import FixedPolicy
from palaestra.algorithms.parts import advantages
from palaestra.core import Batch, NonFiniteError, load_tensors, save_tensors
from palaestra.ops import Categorical
from tests.algorithms.parts import collected


def updated(algorithm, collector, times):
    infos = []
    for _ in range(times):
        infos.append(algorithm.update(collector.buffer))
        collector.unroll(12)
    return infos


def kept(algorithm):
    """The rows that wait for the auxiliary phase, as a checkpoint holds them."""
    state = algorithm.state_tensors()
    return {name.removeprefix("kept."): leaf for name, leaf in state.items() if name.startswith("kept.")}


def weights(algorithm, component):
    return torch.cat([p.detach().reshape(-1).clone() for p in algorithm.model.component[component].parameters()])


def test_an_auxiliary_phase_follows_every_so_many_policy_phases():
    """Algorithm 1: N_pi policy phases, then E_aux passes over everything they collected; then the rows are let go."""
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=3, num_auxiliary_updates=2)
    infos = updated(algorithm, collector, 6)
    phases = [any("auxiliary_error" in record for record in info.records) for info in infos]
    assert phases == [False, False, True, False, False, True]
    steps = [sum("auxiliary_error" in record for record in info.records) for info in infos]
    rows = sum(info.rows_trained for info in infos[:2]) / 2  # each row twice in a policy phase
    assert steps[2] == 2 * -(-int(sum(i.rows_trained for i in infos[:2]) / 2 + rows / 2) // 10)
    assert kept(algorithm) == {}


def test_the_auxiliary_head_moves_in_the_auxiliary_phase_only():
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=2)
    start = weights(algorithm, "auxiliary")
    updated(algorithm, collector, 1)
    assert torch.equal(weights(algorithm, "auxiliary"), start)
    updated(algorithm, collector, 1)
    assert not torch.equal(weights(algorithm, "auxiliary"), start)


@pytest.mark.parametrize("phase", ["_policy_phase", "_auxiliary_phase"])
def test_a_gradient_that_is_not_finite_raises_and_its_minibatch_is_kept(phase, monkeypatch):
    """F23: in both phases, before anything is applied."""
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=1)
    start, stated, given = weights(algorithm, "auxiliary"), getattr(algorithm, phase), []

    def not_finite(batch, *others):
        given.append(batch)
        losses, metrics = stated(batch, *others)
        return [(loss * torch.nan, components) for loss, components in losses], metrics

    monkeypatch.setattr(algorithm, phase, not_finite)
    with pytest.raises(NonFiniteError, match="the gradient of 'policy' is not finite") as caught:
        algorithm.update(collector.buffer)
    assert caught.value.batch is given[0] and "observation" in given[0]
    assert torch.equal(weights(algorithm, "auxiliary"), start)


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_the_auxiliary_phase_teaches_values_and_keeps_the_policy(kind):
    """Equation (3): the policy's layers learn the value targets; a mutant without cloning changes the policy more."""
    moved = {}
    for cost in (0.0, 30.0):
        settings = {"clone_cost": cost, "num_auxiliary_updates": 30, "learning_rate": 0.01, "num_policy_phases": 2}
        algorithm, collector = collected("ppg", kind, entropy_cost=0.0, **settings)
        updated(algorithm, collector, 1)
        observation = collector.buffer.newest(12).observation
        old = FixedPolicy(algorithm.policy)
        assert len(kept(algorithm)["value_target"]) > 20
        info = algorithm.update(collector.buffer)
        errors = [record["auxiliary_error"] for record in info.records if "auxiliary_error" in record]
        assert torch.stack(errors[-5:]).mean() < 0.5 * errors[0]
        divergence = old.distribution(observation).kl(algorithm.policy.distribution(observation))
        moved[cost] = divergence.mean().item()
    assert moved[30.0] < 0.5 * moved[0.0]


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_losses_of_both_phases_are_those_of_a_plain_transcription(kind):
    """Equations (1) to (4), by PyTorch's own distributions, far from the policy before: KL(old, new)."""
    algorithm, collector = collected("ppg", kind, entropy_cost=0.7, clone_cost=2.0, num_policy_phases=2)
    updated(algorithm, collector, 1)
    old, rows = FixedPolicy(algorithm.policy), Batch.of(kept(algorithm))
    with torch.no_grad():
        before = plain(old.distribution(rows.observation))
        for parameter in algorithm.policy.network.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    new = plain(algorithm.policy.distribution(rows.observation))
    clone = torch.distributions.kl_divergence(before, new).mean()
    auxiliary, error = (
        (value(rows.observation) - rows.value_target).square().mean()
        for value in (algorithm.auxiliary_value, algorithm.value)
    )
    (joint, both), (value, alone) = algorithm._auxiliary_phase(rows, old)[0]
    assert_close([joint, value], [0.5 * auxiliary + 2.0 * clone, 0.5 * error])
    assert (both, alone) == (["policy", "auxiliary"], ["value"])
    assert not torch.isclose(clone, torch.distributions.kl_divergence(new, before).mean(), rtol=0.05)
    drawn = advantages(algorithm, algorithm.draw(collector.buffer))
    batch = Batch.of({name: x for name, x in drawn.items() if name != "step_type"})
    now, valid = plain(algorithm.policy.distribution(batch.observation)), batch.valid.bool()
    ratio = (now.log_prob(batch.action) - batch.log_prob).exp()[valid]
    gain = torch.minimum(ratio * batch.advantage[valid], ratio.clamp(0.8, 1.2) * batch.advantage[valid])
    (surrogate, _), _ = algorithm._policy_phase(batch)[0]
    assert_close(surrogate, -gain.mean() - 0.7 * now.entropy()[valid].mean())


def plain(policy):
    """PyTorch's own distribution."""
    if isinstance(policy, Categorical):
        return torch.distributions.Categorical(logits=policy.logits)
    normal = torch.distributions.Normal(policy.mean, policy.log_std.exp().expand_as(policy.mean))
    return torch.distributions.Independent(normal, 1)


def test_the_policys_value_is_read_from_its_last_hidden_layer():
    algorithm, collector = collected("ppg", "discrete")
    observation = collector.env.reset().observation
    first, last = algorithm.policy.network.mlp.layers
    hidden = torch.tanh(first(observation))
    assert_close(algorithm.auxiliary_value(observation), algorithm.model.component["auxiliary"](hidden).squeeze(-1))
    assert_close(algorithm.policy.distribution(observation).logits, last(hidden))


@pytest.mark.parametrize("kind", ["discrete", "masked"])
def test_rows_kept_for_the_auxiliary_phase_survive_a_checkpoint(kind, tmp_path):
    """F25: saved between two auxiliary phases, the next one is bit-equal."""
    algorithm, collector = collected("ppg", kind, num_policy_phases=3)
    updated(algorithm, collector, 2)
    save_tensors(tmp_path / "a.safetensors", algorithm.state_tensors())
    save_tensors(tmp_path / "b.safetensors", collector.buffer.state_tensors())
    other, twin = collected("ppg", kind, seed=9, num_policy_phases=3)
    other.load_state_tensors(load_tensors(tmp_path / "a.safetensors"))
    twin.buffer.load_state_tensors(load_tensors(tmp_path / "b.safetensors"))
    for learner, source in ((algorithm, collector), (other, twin)):
        info = learner.update(source.buffer)
        assert "auxiliary_error" in info.metrics
    for component in ("policy", "value", "auxiliary"):
        assert torch.equal(weights(algorithm, component), weights(other, component))


def test_rows_that_are_not_valid_are_not_kept():
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=2, num_epochs=1)
    valid = collector.buffer.draw(algorithm.plan, torch.Generator()).valid
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=2, num_epochs=1)
    updated(algorithm, collector, 1)
    assert len(kept(algorithm)["value_target"]) == int(valid.sum()) < valid.numel()


def test_nothing_is_learned_where_no_row_counts():
    """Neither from the unroll nor, where none was kept, in the auxiliary phase."""
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=2)
    unroll = collector.buffer.draw(algorithm.plan, torch.Generator())

    class Ends:
        def draw(self, plan, generator):
            return unroll.replace(valid=torch.zeros_like(unroll.valid))

    infos = [algorithm.update(Ends()) for _ in range(2)]
    assert [(info.gradient_steps, info.metrics) for info in infos] == [(0, {}), (0, {})]


def test_steps_of_both_phases_are_counted():
    algorithm, collector = collected("ppg", "discrete", num_policy_phases=2)
    infos = updated(algorithm, collector, 4)
    assert algorithm.num_gradient_steps == sum(info.gradient_steps for info in infos)
