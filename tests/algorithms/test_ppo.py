"""Tests of `palaestra.algorithms.ppo`."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from palaestra import NetworkConfig
from palaestra.algorithms import PPO, PPOConfig, ShardedSteps
from palaestra.core import Batch, ConfigError, Linear, NonFiniteError, StepType, sequences
from palaestra.ops import gae
from tests.algorithms.parts import collected
from tests.algorithms.replayed import constant

ROWS = 12 * 3


def unroll(algorithm: PPO, collector: Any) -> Batch:
    return collector.buffer.draw(algorithm.plan, torch.Generator())


def ppo(kind: str = "discrete", **settings: Any) -> tuple[PPO, Any]:
    algorithm, collector = collected("ppo", kind, **settings)
    assert isinstance(algorithm, PPO)
    return algorithm, collector


@pytest.mark.parametrize("poisoned", [0, 2])
def test_an_update_that_is_cut_off_keeps_its_gradient_steps_and_they_have_a_version(poisoned, monkeypatch):
    """F23: rows that the changed policy collects must not carry the version of the one before it."""
    (algorithm, collector), (twin, other) = ppo(), ppo()
    original, calls = algorithm.losses, []

    def losses(batch: Any) -> Any:
        stated = original(batch)
        calls.append(None)
        return stated._replace(terms={k: v * torch.nan for k, v in stated.terms.items()}) if len(calls) > 2 else stated

    calls += [None] * (2 - poisoned)
    monkeypatch.setattr(algorithm, "losses", losses)
    minibatches: list[Any] = []

    def step(minibatch: Any) -> Any:
        if len(minibatches) == poisoned:
            raise InterruptedError
        minibatches.append(minibatch)
        gradients = twin.gradients(minibatch)
        return twin.apply_shards([gradients])

    with pytest.raises(InterruptedError):
        twin.update(other.buffer, ShardedSteps(step))
    with pytest.raises(NonFiniteError, match=f"after {poisoned} gradient steps"):
        algorithm.update(collector.buffer)
    assert algorithm.policy_version == twin.policy_version == int(poisoned > 0)
    left = twin.model.state_tensors()
    assert all(torch.equal(left[name], tensor) for name, tensor in algorithm.model.state_tensors().items())


def test_preprocess_adds_advantages_and_targets_in_one_pass():
    """TS-14, ALF-22: GAE with gamma times the environment's discount; targets are not standardised."""
    algorithm, collector = ppo(standardize_advantage=False, gamma=0.9, gae_lambda=0.7)
    drawn = unroll(algorithm, collector)
    batch = algorithm.preprocess(drawn, collector.buffer)
    value = algorithm.value(drawn.observation).detach()
    expected = gae(value, drawn.reward, drawn.discount, drawn.step_type, gamma=0.9, lambda_=0.7)
    assert_close(batch.advantage, expected)
    assert_close(batch.value_target, value[:-1] + expected)
    last = drawn.step_type[:-1] == StepType.LAST
    assert last.any()
    assert batch.valid[last].max() == 0


def test_advantages_are_standardised_over_the_valid_rows_of_the_whole_unroll():
    """DESIGN.md section 5: what mixes rows happens in `preprocess`."""
    algorithm, collector = ppo()
    batch = algorithm.preprocess(unroll(algorithm, collector), collector.buffer)
    valid = batch.advantage[batch.valid > 0]
    assert_close(valid.mean(), torch.tensor(0.0), atol=1e-5, rtol=0)
    assert_close(valid.std(correction=0), torch.tensor(1.0), atol=2e-2, rtol=0)


@pytest.mark.parametrize("kind", ["discrete", "continuous", "masked"])
def test_the_stored_log_probabilities_are_those_of_the_acting_weights(kind):
    """DESIGN.md section 5: computed by whoever acted, so the first ratio is 1 and the first divergence 0."""
    algorithm, collector = ppo(kind, mini_batch_size=10**6, num_epochs=1, normalize_observation=kind == "continuous")
    for _ in range(2):
        metrics = algorithm.update(collector.buffer).records[0]
        assert abs(float(metrics["kl"])) < 1e-6
        assert abs(float(metrics["surrogate"])) < 1e-5  # minus the mean of standardised advantages
        collector.unroll(12)


def test_rows_that_do_not_count_have_no_say_in_the_divergence():
    """A pool that resets within the step stores an action that was not drawn there: 100 nats off, for example."""
    algorithm, collector = ppo()
    batch = algorithm.preprocess(unroll(algorithm, collector), collector.buffer)
    flat = batch.map(lambda leaf: leaf.flatten(0, 1))
    far = flat.replace(log_prob=torch.where(flat.valid > 0, flat.log_prob, flat.log_prob - 100.0))
    assert (far.log_prob != flat.log_prob).any()
    assert_close(algorithm.losses(far).metrics["kl"], algorithm.losses(flat).metrics["kl"])


def test_the_surrogate_stops_at_the_clip_range():
    """Schulman et al. equation (7): a ratio beyond 1 + epsilon has no gradient where the advantage is positive."""
    algorithm, collector = ppo(entropy_cost=0.0, value_cost=0.0, clip=0.2)
    batch = algorithm.preprocess(unroll(algorithm, collector), collector.buffer)
    flat = batch.map(lambda leaf: leaf.flatten(0, 1))
    far = flat.replace(log_prob=flat.log_prob - 1.0, advantage=torch.ones_like(flat.advantage))
    assert max(float(g.abs().max()) for g in algorithm.gradients(far).values.values()) == 0.0
    assert algorithm.losses(far).metrics["surrogate"].item() == pytest.approx(-1.2)
    near = far.replace(log_prob=flat.log_prob)
    assert max(float(g.abs().max()) for g in algorithm.gradients(near).values.values()) > 0.0


def test_an_update_ends_when_the_policy_has_moved_as_far_as_target_kl_allows():
    steps = [ppo(target_kl=limit, learning_rate=0.05, num_epochs=4) for limit in (None, 1e-4, 1e9)]
    counts = [algorithm.update(collector.buffer).gradient_steps for algorithm, collector in steps]
    assert counts[0] == counts[2]
    assert 1 < counts[1] < counts[0]  # the first minibatch is learned from with the weights that acted


def test_a_class_of_ones_own_may_end_an_update():
    class Stops(PPO):
        def stop_early(self, metrics):
            return self.num_gradient_steps == 3

    algorithm, collector = ppo(num_epochs=4)
    own = Stops(algorithm.policy.observation_spec, algorithm.policy.action_spec, algorithm.config)
    assert own.update(collector.buffer).gradient_steps == 3


def test_any_number_of_a_loss_may_follow_a_schedule():
    algorithm, collector = ppo(entropy_cost=Linear(1.0, 0.0), value_cost=Linear(0.0, 1.0), gamma=Linear(0.5, 0.9))
    batch = sequences(algorithm.preprocess(unroll(algorithm, collector), collector.buffer), 1)
    fixed = [ppo(entropy_cost=at, value_cost=1.0 - at)[0] for at in (1.0, 0.5)]
    for progress, other in zip((0.0, 0.5), fixed, strict=True):
        algorithm.set_progress(progress)
        assert_close(algorithm.losses(batch).terms, other.losses(batch).terms)
    assert float(algorithm.value_of("gamma")) == pytest.approx(0.7)
    assert algorithm.value_of("max_grad_norm") == 0.5


def test_schedules_of_learning_rate_and_clip_range_are_followed():
    algorithm, collector = ppo(learning_rate=Linear(1e-2, 0.0), clip=Linear(0.2, 0.0))
    optimizer = algorithm.model.optimizers["ppo"]
    for progress, rate, clip in ((0.0, 1e-2, 0.2), (0.5, 5e-3, 0.1), (1.0, 0.0, 0.0)):
        algorithm.set_progress(progress)
        assert float(optimizer.learning_rate) == pytest.approx(rate)
        assert float(algorithm.value_of("clip")) == pytest.approx(clip)
    before = {name: p.clone() for name, p in algorithm.model.named_parameters()}
    algorithm.update(collector.buffer)
    assert all(torch.equal(before[name], p) for name, p in algorithm.model.named_parameters())


def test_each_row_is_used_once_in_every_pass_and_in_another_order():
    """ALF-08, scenario 3: U · N / size steps, each stored step seen exactly U times, shuffled between the passes."""
    algorithm, collector = ppo(num_epochs=3, mini_batch_size=9)
    rows = torch.arange(ROWS, dtype=torch.float32)
    original, seen = algorithm.preprocess, []
    algorithm.preprocess = lambda batch, source: original(batch, source).replace(value_target=rows.view(12, 3))
    losses = algorithm.losses

    def spy(batch: Any) -> Any:
        seen.append(batch.value_target.tolist())
        return losses(batch)

    algorithm.losses = spy
    info = algorithm.update(collector.buffer)
    assert [len(minibatch) for minibatch in seen] == [9] * 12
    assert info.gradient_steps == 3 * ROWS // 9
    flat = [row for minibatch in seen for row in minibatch]
    assert Counter(flat) == dict.fromkeys(map(float, range(ROWS)), 3)
    passes = [flat[i * ROWS : (i + 1) * ROWS] for i in range(3)]
    assert len({tuple(one) for one in passes}) == 3


def test_observation_statistics_are_frozen_during_an_update_and_take_each_row_once():
    """DESIGN.md section 5: merged after the update; the row to bootstrap from counts with the next unroll."""
    algorithm, collector = ppo("continuous", normalize_observation=True)
    normalizer = algorithm.policy.normalizer
    assert normalizer is not None
    original, counts = algorithm.losses, []

    def losses(batch: Any) -> Any:
        counts.append(float(normalizer.count))
        return original(batch)

    algorithm.losses = losses
    for update in range(3):
        algorithm.update(collector.buffer)
        assert set(counts[-2:]) == {float(update * ROWS)}
        assert float(normalizer.count) == (update + 1) * ROWS
        collector.unroll(12)


def test_an_update_reports_how_well_values_explained_their_targets():
    """1 - Var(target - value) / Var(target), of all rows that count and of the values before the update."""
    algorithm, collector = ppo()
    drawn = unroll(algorithm, collector)
    batch = algorithm.preprocess(drawn, collector.buffer)
    rows = batch.valid.bool()
    error = (batch.value_target - batch.value)[rows]
    expected = 1 - error.var(correction=0) / batch.value_target[rows].var(correction=0)
    info = algorithm.update(collector.buffer)
    reported = [float(record["explained_variance"]) for record in info.records if "explained_variance" in record]
    assert reported == [pytest.approx(float(expected), abs=1e-5)]


@pytest.mark.parametrize("entropy_cost", [0.0, 0.3])
def test_the_loss_is_that_of_a_loop_over_valid_rows(entropy_cost):
    """Schulman et al. 2017, equation (9): entropy lowers it, and rows that are not valid do not count."""
    algorithm, collector = ppo(entropy_cost=entropy_cost, value_cost=0.7, clip=0.1)
    drawn = unroll(algorithm, collector)
    batch: Any = algorithm.preprocess(drawn, collector.buffer)
    some = torch.rand(batch.valid.shape, generator=torch.Generator().manual_seed(0)) < 0.6
    batch = batch.replace(valid=batch.valid * some, log_prob=batch.log_prob - 0.4 * batch.advantage.sign())
    rows = [tuple(row) for row in batch.valid.nonzero().tolist()]
    assert 0 < len(rows) < batch.valid.numel()
    total = 0.0
    for row in rows:
        logits = algorithm.policy.distribution(batch.observation[row]).logits.detach()
        chances = logits.softmax(-1)
        ratio = float((logits.log_softmax(-1)[batch.action[row]] - batch.log_prob[row]).exp())
        gain = min(ratio * batch.advantage[row], min(max(ratio, 0.9), 1.1) * batch.advantage[row])
        entropy = -float((chances * chances.log()).sum())
        error = float(algorithm.value(batch.observation[row]).detach() - batch.value_target[row]) ** 2
        total += -float(gain) + 0.7 * error - entropy_cost * entropy
    assert algorithm.losses(batch).terms["ppo"].item() == pytest.approx(total / len(rows), rel=1e-4)


def test_a_memory_learns_from_every_row_of_an_unroll_that_fills_no_last_sequence():
    """With whole episodes, these are the ends of the longest; what fills the sequence up adds nothing to the loss."""
    algorithm, collector = ppo("recurrent", mini_batch_length=8, mini_batch_size=48, num_epochs=1)
    rows, seen = algorithm.preprocess(unroll(algorithm, collector), collector.buffer), []

    def step(minibatch: Any) -> Any:
        seen.append(minibatch)
        return algorithm.apply_shards([algorithm.gradients(minibatch)])

    cut = sequences(rows, 8)
    assert cut.valid.shape == (8, 6) and not cut.valid[4:, 3:].any()
    assert cut.valid.sum() == rows.valid.sum()
    end = algorithm.losses(rows.map(lambda leaf: leaf[8:])).terms["ppo"]
    assert_close(algorithm.losses(cut.map(lambda leaf: leaf[:, 3:])).terms["ppo"], end)
    info = algorithm.update(collector.buffer, ShardedSteps(step))
    assert (info.rows_trained, info.gradient_steps) == (int(rows.valid.sum()), len(seen))


# -- options: each against a plain transcription of its formula, over rows one by one


def rows_of(algorithm: PPO, collector: Any) -> tuple[Any, Any]:
    """The rows of an unroll as one minibatch, after the weights have moved away from those that acted."""
    flat = sequences(algorithm.preprocess(unroll(algorithm, collector), collector.buffer), 1)
    algorithm.update(collector.buffer)
    value = algorithm.value(flat.observation).detach()
    return flat, value


def mean_of(flat: Any, numbers: list[float]) -> float:
    kept = [number for number, valid in zip(numbers, flat.valid.tolist(), strict=True) if valid]
    return sum(kept) / len(kept)


def test_the_value_error_is_clipped_where_the_value_has_moved_far():
    """Beyond the list 8: max((V - y)^2, (clip(V, V0 - e, V0 + e) - y)^2), Engstrom et al. 2020."""
    algorithm, collector = ppo(value_clip=0.02, learning_rate=0.03)
    flat, value = rows_of(algorithm, collector)
    expected, moved = [], 0
    for v, old, y in zip(value.tolist(), flat.value.tolist(), flat.value_target.tolist(), strict=True):
        near = min(max(v, old - 0.02), old + 0.02)
        moved += near != v
        expected.append(max((v - y) ** 2, (near - y) ** 2))
    assert moved > 5
    error = algorithm.losses(flat).metrics["value_error"].item()
    assert error == pytest.approx(mean_of(flat, expected), rel=1e-4)
    assert error > mean_of(flat, (value - flat.value_target).square().tolist())  # the mutant: not clipped


def test_the_dual_clip_bounds_what_a_bad_action_costs():
    """Beyond the list 8: max(min(r A, clip(r) A), c A) where A < 0, Ye et al. 2020."""
    algorithm, collector = ppo(dual_clip=1.5)
    flat = sequences(algorithm.preprocess(unroll(algorithm, collector), collector.buffer), 1)
    flat = flat.replace(log_prob=flat.log_prob - 1.0)  # the ratio is e = 2.718... in every row
    expected = []
    for a in flat.advantage.tolist():
        gain = min(2.718281828 * a, 1.2 * a)
        expected.append(-max(gain, 1.5 * a) if a < 0 else -gain)
    assert algorithm.losses(flat).metrics["surrogate"].item() == pytest.approx(mean_of(flat, expected), rel=1e-4)
    bad = flat.replace(advantage=-torch.ones_like(flat.advantage))
    gradients = algorithm.gradients(bad).values
    assert max(float(g.abs().max()) for name, g in gradients.items() if ".policy." in name) == 0.0


def test_a_value_of_normalised_returns_learns_in_units_of_their_standard_deviation():
    """Beyond the list 8: y / s and GAE with s V, s the running deviation of the returns of earlier updates."""
    algorithm, collector = ppo(normalize_return=True, standardize_advantage=False, gamma=0.9, gae_lambda=0.7)
    seen: list[float] = []
    for _ in range(3):
        drawn = unroll(algorithm, collector)
        mean = sum(seen) / max(1, len(seen))
        s = (sum((y - mean) ** 2 for y in seen) / len(seen)) ** 0.5 if seen else 1.0
        value = s * algorithm.value(drawn.observation).detach()
        expected = gae(value, drawn.reward, drawn.discount, drawn.step_type, gamma=0.9, lambda_=0.7)
        batch = algorithm.preprocess(drawn, collector.buffer)
        assert_close(batch.advantage, expected, rtol=1e-4, atol=1e-5)
        assert_close(batch.value_target, (value[:-1] + expected) / s, rtol=1e-4, atol=1e-5)
        seen += (value[:-1] + expected)[batch.valid > 0].tolist()
        algorithm.update(collector.buffer)
        collector.unroll(12)
    assert s != 1.0
    restored, _ = ppo(normalize_return=True)
    restored.model.load_state_tensors(algorithm.model.state_tensors())
    assert restored.return_scale is not None
    assert torch.equal(restored.return_scale(), algorithm.return_scale())


def test_values_of_the_update_before_are_in_the_units_of_the_network_too():
    """Returns count in tens: a value that has not moved lies 0 from itself, and clipping it changes nothing."""
    (algorithm, collector), (plain, _) = (ppo(normalize_return=True, value_clip=clip) for clip in (0.2, None))
    for one in (algorithm, plain):
        constant(one.value.network, 0.3)
        assert one.return_scale is not None
        one.return_scale.merge(torch.tensor([-10.0, 10.0]))
    batch = algorithm.preprocess(unroll(algorithm, collector), collector.buffer)
    assert_close(batch.value, torch.full_like(batch.value, 0.3))
    flat = sequences(batch, 1)
    errors = [one.losses(flat).metrics["value_error"].item() for one in (algorithm, plain)]
    assert errors[0] == pytest.approx(errors[1])


def test_the_unit_of_returns_that_do_not_vary_is_small_but_not_0():
    """Beyond the list 8: the variance gets 1e-8, as where advantages are standardised; before the first it is 1."""
    scale = ppo(normalize_return=True)[0].return_scale
    assert scale is not None
    assert scale().item() == 1.0
    scale.merge(torch.full((5,), 3.0))
    assert scale().item() == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputed_advantages_are_those_of_the_weights_in_front_of_each_pass(recompute):
    """Beyond the list 8: Andrychowicz et al. 2020, section 3.5; without it all passes have the first one's."""
    algorithm, collector = ppo(recompute_advantage=recompute, num_epochs=3, mini_batch_size=10**6, learning_rate=0.03)
    drawn = unroll(algorithm, collector)
    expected, targets = [], []
    losses = algorithm.losses

    def spy(batch: Any) -> Any:
        targets.append(batch.value_target.clone())
        expected.append(sequences(algorithm.preprocess(drawn, collector.buffer), 1).value_target)
        return losses(batch)

    algorithm.losses = spy
    algorithm.update(collector.buffer)
    assert len(targets) == 3
    for target, fresh in zip(targets, expected, strict=True):
        assert_close(target, fresh if recompute else expected[0])
    assert not torch.allclose(expected[0], expected[2])


def test_a_dual_clip_of_at_most_one_is_refused():
    with pytest.raises(ConfigError, match=r"algorithm\.dual_clip is 0\.5; it must be greater than 1"):
        ppo(dual_clip=0.5)


def test_sequences_are_at_most_as_long_as_an_unroll():
    """The default length with short unrolls; a single step has nothing to remember."""
    network = NetworkConfig(hidden_sizes=(8,), recurrent="gru", recurrent_size=4)
    plan = PPOConfig(network=network, unroll_length=6, mini_batch_size=24).plan
    assert (plan.mini_batch_length, plan.mini_batch_size) == (6, 4)
    for short in ({"mini_batch_length": 1}, {"unroll_length": 0.5}, {"unroll_length": 1}):
        assert PPOConfig(**short).plan.mini_batch_length == 1
        with pytest.raises(ConfigError, match="sequences of at least 2 time steps"):
            _ = PPOConfig(network=network, **short).plan
