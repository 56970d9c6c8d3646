"""Tests of `palaestra.algorithms.dreamer`, of its world model and of its policy."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra import Collector, EnvConfig, NetworkConfig, create_environment
from palaestra.algorithms import Dreamer, DreamerConfig, ReturnRange
from palaestra.core import Batch, BoundedSpec, ConfigError, DiscreteSpec, MultiDiscreteSpec, StepType, TensorSpec
from palaestra.core import TimeStep as Row
from palaestra.nn import Decoder, SymexpHead
from palaestra.ops import symexp, symlog, two_hot
from palaestra.policies import LatentPolicy, Phase
from palaestra.policies.actions import raw_actions
from tests.algorithms.parts import collected, first_minibatch
from tests.contracts.test_algorithms import shaken

SIZES = {"memory_size": 8, "num_latents": 3, "num_classes": 4}


def minibatch_of(kind, **changes):
    algorithm, collector = collected("dreamer", kind, **changes)
    return shaken(algorithm), first_minibatch(algorithm, collector.buffer)


# -- the losses, row by row


class Transcription:
    """DreamerV3 for one sequence at a time, in plain numbers, written from the paper."""

    def __init__(self, algorithm):
        self.config, self.policy = algorithm.config, algorithm.policy
        self.world, self.actor = algorithm.policy.network.world, algorithm.policy.network.head
        self.algorithm, self.discrete = algorithm, isinstance(algorithm.policy.action_spec, DiscreteSpec)
        self.bins = [math.copysign(math.expm1(abs(b)), b) for b in self._even()]

    def _even(self):
        most = math.log(self.config.max_return + 1)
        return [most * (2 * i / (self.config.num_bins - 1) - 1) for i in range(self.config.num_bins)]

    def step(self, h, z, a):
        d, dynamics = self.world.dynamics, self.config.memory_size
        x = d.inputs(torch.cat([z, a]))
        gates = d.gates.weight @ torch.cat([x, h])
        gates = (gates - gates.mean()) / (gates.var(correction=0) + 1e-5).sqrt() * d.norm.weight + d.norm.bias
        reset, candidate, update = gates[:dynamics], gates[dynamics : 2 * dynamics], gates[2 * dynamics :]
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        update = torch.sigmoid(update - 1)
        return update * candidate + (1 - update) * h

    def probs(self, logits):
        rows = logits.reshape(self.config.num_latents, self.config.num_classes)
        return 0.99 * rows.exp() / rows.exp().sum(1, keepdim=True) + 0.01 / self.config.num_classes

    def draw(self, probs, uniform):
        """One-hot rows: the first class whose summed probability is above the random number."""
        code = torch.zeros_like(probs)
        for s, row in enumerate(probs.detach()):
            total, chosen = 0.0, len(row) - 1
            for c, p in enumerate(row.tolist()):
                total += p
                if uniform[s] < total:
                    chosen = c
                    break
            code[s, chosen] = 1.0
        return (code + probs - probs.detach()).reshape(-1)

    def number(self, head, features):
        logits = head.network(features)
        return sum(p * b for p, b in zip(logits.softmax(0), self.bins, strict=True))

    def two_hot_error(self, head, features, x):
        log_probs, x = head.network(features).log_softmax(0), float(x)
        k = max(i for i, b in enumerate(self.bins[:-1]) if b <= x or i == 0)
        share = min(max((x - self.bins[k]) / (self.bins[k + 1] - self.bins[k]), 0.0), 1.0)
        return -((1 - share) * log_probs[k] + share * log_probs[k + 1])

    def code(self, action):
        if self.discrete:
            return torch.eye(self.policy.action_spec.num)[int(action)]
        return action.clamp(-1, 1)

    def act(self, features, noise):
        """An action, its log-probability and the entropy."""
        out = self.actor(features.detach())
        if self.discrete:
            probs = 0.99 * out.softmax(0) + 0.01 / len(out)
            action = int((probs.log() - noise).argmax())
            return action, probs.log()[action], -(probs * probs.log()).sum()
        half = len(out) // 2
        mean, std = torch.tanh(out[:half]), 0.9 * torch.sigmoid(out[half:] + 2) + 0.1
        action = (mean + std * noise).detach()
        log_prob = (-((action - mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)).sum()
        return action, log_prob, (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum()

    def terms(self, batch):
        c, sums, rows = self.config, {"world_model": 0.0, "actor": 0.0, "critic": 0.0}, 0
        starts = self.algorithm._starts.tolist()
        for n in range(batch.reward.shape[1]):
            h, z = batch.state["memory"][0, n], batch.state["latent"][0, n]
            for t in range(len(batch.reward)):
                a = batch.before[t, n]
                if batch.first[t, n]:
                    h, z, a = torch.zeros_like(h), torch.zeros_like(z), torch.zeros_like(a)
                h = self.step(h, z, a)
                small = batch.observation[t, n]
                small = small.sign() * (small.abs() + 1).log()
                code = self.world.embedding(small)
                q = self.probs(self.world.dynamics.posterior_head(torch.cat([h, code])))
                z = self.draw(q, batch.latent_noise[t, n])
                if t < c.burn_in:
                    h, z = h.detach(), z.detach()
                    continue
                rows += 1
                sums["world_model"] += self.model_error(h, z, q, small, batch, t, n)
                if t in starts:
                    k = starts.index(t)
                    actor, critic = self.behaviour(h, z, batch, t, n, k)
                    sums["actor"] += actor
                    sums["critic"] += critic
        count = batch.reward.shape[1] * len(starts)
        return {name: value / (rows if name == "world_model" else count) for name, value in sums.items()}

    def model_error(self, h, z, q, small, batch, t, n):
        c, features = self.config, torch.cat([h, z])
        p = self.probs(self.world.dynamics.prior_head(h))
        dynamics = (q.detach() * (q.detach() / p).log()).sum()
        representation = (q * (q / p.detach()).log()).sum()
        error = ((self.algorithm.decoder.numbers(features) - small) ** 2).sum()
        error = error + self.two_hot_error(self.algorithm.reward, features, batch.reward[t, n])
        continuation = torch.sigmoid(self.algorithm.continuation(features))[0]
        error = error - (continuation if batch.discount[t, n] else 1 - continuation).log()
        error = error + c.dynamics_cost * dynamics.clamp(min=c.free_nats)
        return error + c.representation_cost * representation.clamp(min=c.free_nats)

    def behaviour(self, h, z, batch, t, n, k):
        c, model = self.config, self.algorithm
        h, z = h.detach(), z.detach()
        features, said, num_starts = [torch.cat([h, z])], [], len(model._starts)
        for i in range(c.horizon):
            action, log_prob, entropy = self.act(features[-1], batch.action_noise[i * num_starts + k, n])
            said.append((log_prob, entropy))
            h = self.step(h, z, self.code(action))
            p = self.probs(self.world.dynamics.prior_head(h))
            z = self.draw(p, batch.imagined_noise[i * num_starts + k, n])
            h, z = h.detach(), z.detach()
            features.append(torch.cat([h, z]))
        goes_on = [batch.discount[t, n], *(torch.sigmoid(model.continuation(f))[0].detach() for f in features[1:])]
        value = [self.number(model.critic, f).detach() for f in features]
        returns, last = [], value[-1]
        for i in reversed(range(c.horizon)):
            reward = self.number(model.reward, features[i + 1]).detach()
            last = reward + c.gamma * goes_on[i + 1] * ((1 - c.trace_decay) * value[i + 1] + c.trace_decay * last)
            returns.insert(0, last)
        weight, actor, critic = batch.discount[t, n], 0.0, 0.0
        scale = max(1.0, float(model.return_range.high - model.return_range.low))
        for i, (log_prob, entropy) in enumerate(said):
            weight = weight if i == 0 else weight * c.gamma * goes_on[i]
            advantage = (returns[i] - value[i]) / scale
            actor = actor - weight * (advantage * log_prob + c.entropy_cost * entropy) / c.horizon
            slow = self.number(model.target_critic, features[i]).detach()
            error = self.two_hot_error(model.critic, features[i], returns[i])
            error = error + c.slow_value_cost * self.two_hot_error(model.critic, features[i], slow)
            critic = critic + weight * error / c.horizon
        return actor, critic


@pytest.mark.parametrize(("kind", "free_nats"), [("discrete", 0.0), ("continuous", 0.3)])
def test_losses_and_gradients_are_those_of_a_transcription_row_by_row(kind, free_nats):
    algorithm, batch = minibatch_of(kind, mini_batch_sequences=4, free_nats=free_nats, max_return=100.0)
    assert batch.first[1:].any() and not batch.discount.all()  # episodes end within
    with torch.no_grad():
        algorithm.return_range.low.fill_(-1.5)
        algorithm.return_range.high.fill_(2.0)
    expected, terms = Transcription(algorithm).terms(batch), algorithm.losses(batch).terms
    assert_close(terms, expected, rtol=1e-4, atol=1e-5)
    gradients = algorithm.gradients(batch).values
    for name, term in expected.items():
        trained = algorithm.model.optimizers[name]
        for key, own in zip(
            trained.names, torch.autograd.grad(term, trained.parameters, retain_graph=True), strict=True
        ):
            assert_close(gradients[key], own, rtol=1e-3, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


def test_terms_train_their_own_component_only():
    algorithm, batch = minibatch_of("discrete")
    for name, term in algorithm.losses(batch).terms.items():
        others = [
            p
            for other in {"world_model", "actor", "critic"} - {name}
            for p in algorithm.model.component[other].parameters()
        ]
        gradients = torch.autograd.grad(term, others, allow_unused=True, retain_graph=True)
        assert all(gradient is None or not gradient.any() for gradient in gradients), name


def test_the_state_in_learning_is_the_one_in_acting():
    """Rows as they were collected, with the same random latents, lead to the states that were stored."""
    algorithm, collector = collected("dreamer", "discrete", burn_in=0, mini_batch_length=4, mini_batch_sequences=6)
    policy, env = algorithm.policy, collector.env
    step, state, states, rows = env.reset(), policy.initial_state(3), [], []
    for _ in range(9):
        before = policy.begun(state, step.first)
        chosen = policy.act(step, state, phase=Phase.EVAL, deterministic=True)
        rows.append((step.observation, before["action"], step.first))
        states.append(chosen.state)
        state, step = chosen.state, env.step(policy.env_action(chosen.action))
    observation, action, first = (torch.stack(column) for column in zip(*rows, strict=True))
    world = policy.network.world
    assert first[1:].any()
    memory, latent = (policy.initial_state(3)[name] for name in ("memory", "latent"))
    for t in range(9):
        seen = world.dynamics.observe(
            world.encode(observation[t : t + 1]),
            action[t : t + 1],
            first[t : t + 1],
            {"memory": memory, "latent": latent},
            torch.zeros(1, 3, 3),
        )
        memory, latent = seen.memory[0], world.dynamics.most_probable(seen.posterior[0])
        assert_close(memory, states[t]["memory"])
        assert_close(latent, states[t]["latent"])


def test_the_range_of_returns_follows_percentiles_outside_of_losses():
    scale, returns = ReturnRange(), torch.linspace(-50, 50, 1001)
    assert float(scale()) == 1.0
    scale.merge(returns)
    assert_close(float(scale()), 90.0)
    scale.merge(returns * 0)
    assert_close(float(scale()), 45.0)  # the first ones count alike
    algorithm, collector = collected("dreamer", "continuous")
    algorithm.update(collector.buffer)
    assert float(algorithm.return_range.count) == 1.0
    assert "component.return_range.low" in dict(algorithm.model.state_dict())


def test_only_rows_that_were_seen_from_the_row_before_them_count():
    """Neither lost rows, which are LAST, nor what follows them up to the next FIRST, nor an end in front of all."""
    kinds = [[1, 1, 0, 2], [1, 2, 1, 1], [2, 2, 1, 1], [2, 1, 0, 0], [0, 1, 1, 1]]
    expected = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 1, 1]]
    algorithm, collector = collected("dreamer", "continuous", burn_in=0, mini_batch_sequences=4)
    drawn = collector.buffer.draw(dataclasses.replace(algorithm.plan, gradient_steps=1), torch.Generator())
    drawn = drawn.replace(step_type=torch.tensor(kinds, dtype=torch.int32))
    batch = algorithm.prepared(drawn, drawn, collector.buffer)
    assert batch.valid.tolist() == expected
    shaken(algorithm).after_update(batch)
    low = float(algorithm.return_range.low)
    batch.observation[0, 3] += 5.0
    algorithm.after_update(batch)
    assert float(algorithm.return_range.low) == pytest.approx(low) != 0
    algorithm.after_update(batch.replace(valid=torch.zeros_like(batch.valid)))
    assert float(algorithm.return_range.count) == 2


# -- two-hot numbers


def test_two_hot_targets_have_the_number_as_their_mean():
    bins = symexp(torch.linspace(-5, 5, 33))
    x = torch.tensor([-1000.0, -147.0, -0.3, 0.0, 0.02, 5.0, 146.0, 1000.0])
    targets = two_hot(x, bins)
    assert ((targets > 0).sum(-1) <= 2).all()
    assert_close(targets.sum(-1), torch.ones(8))
    assert_close(targets @ bins, x.clamp(bins[0], bins[-1]), rtol=1e-4, atol=1e-4)
    assert_close(symexp(symlog(x)), x, rtol=1e-4, atol=1e-6)


def test_a_head_that_knows_nothing_says_exactly_zero_however_large_its_bins_are():
    for num_bins in (8, 127):
        head = SymexpHead(3, num_bins, 1e8, NetworkConfig(hidden_sizes=(4,)))
        assert head.mean(head(torch.randn(5, 3))).abs().max() < 1e-4
        assert_close(float(head.bins[-1]), 1e8, rtol=1e-3, atol=0.0)


# -- what is decoded


def test_every_part_of_an_observation_but_the_mask_is_predicted():
    spec = {
        "action_mask": TensorSpec((2,), torch.bool),
        "grey": TensorSpec((20, 33, 1), torch.uint8),
        "room": DiscreteSpec(num=3),
        "speed": TensorSpec((2,)),
    }
    decoder = Decoder(spec, 6, NetworkConfig(hidden_sizes=(8,), image_size=16))
    features = torch.randn(4, 5, 6)
    grey = torch.randint(0, 256, (4, 5, 20, 33, 1), dtype=torch.uint8)
    observation = Batch(
        action_mask=torch.ones(4, 5, 2, dtype=torch.bool),
        grey=grey,
        room=torch.ones(4, 5).long(),
        speed=torch.randn(4, 5, 2),
    )
    error = decoder.error(features, observation)
    numbers = symlog(torch.cat([torch.tensor([0.0, 1.0, 0.0]).expand(4, 5, 3), observation.speed], -1))
    picture = decoder.pictures[0](features)
    assert picture.shape == (4, 5, 1, 20, 33)
    expected = (decoder.numbers(features) - numbers).square().sum(-1)
    expected = expected + (picture[:, :, 0] - grey[..., 0] / 255).square().sum((-1, -2))
    assert_close(error, expected)


# -- the policy


def test_a_policy_keeps_a_little_of_every_action_and_honours_masks():
    policy = LatentPolicy.build(TensorSpec((2,)), DiscreteSpec(num=4), **SIZES)
    probs = policy.distribution_of(torch.tensor([100.0, 0.0, 0.0, 0.0])).probs
    assert_close(probs, torch.tensor([0.9925, 0.0025, 0.0025, 0.0025]))
    masked = policy.distribution_of(torch.zeros(4), torch.tensor([1, 0, 1, 0])).probs
    assert_close(masked, torch.tensor([0.5, 0.0, 0.5, 0.0]))
    box = BoundedSpec((2,), minimum=np.array([0.0, -2.0]), maximum=np.array([4.0, 2.0]))
    continuous = LatentPolicy.build(TensorSpec((2,)), box, **SIZES)
    normal = continuous.distribution_of(torch.tensor([50.0, 0.0, -50.0, 50.0]))
    assert_close(normal.mean, torch.tensor([1.0, 0.0]))
    assert_close(normal.log_std.exp(), torch.tensor([0.1, 1.0]))
    assert_close(continuous.encoded(torch.tensor([-3.0, 0.5])), torch.tensor([-1.0, 0.5]))


def test_memory_reaches_back_to_the_first_observation_and_ends_with_the_episode():
    policy = LatentPolicy.build(TensorSpec((2,)), DiscreteSpec(num=2), **SIZES).eval()
    for parameter in policy.parameters():
        parameter.data.add_(0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))

    def memory(seen, kinds):
        state = policy.initial_state(1)
        for value, kind in zip(seen, kinds, strict=True):
            row = Row(step_type=torch.tensor([kind]), observation=torch.full((1, 2), value))
            state = policy.act(row, state, deterministic=True).state
        return state["memory"]

    first, mid = int(StepType.FIRST), int(StepType.MID)
    assert not torch.equal(memory([9.0, 0.0, 0.0], [first, mid, mid]), memory([-9.0, 0.0, 0.0], [first, mid, mid]))
    assert torch.equal(memory([9.0, 0.0, 0.0], [first, first, mid]), memory([-9.0, 0.0, 0.0], [first, first, mid]))


def test_what_does_not_fit_is_refused():
    spec = TensorSpec((2,))
    with pytest.raises(ConfigError, match="LatentPolicy needs a continuous action space"):
        Dreamer(spec, MultiDiscreteSpec(nvec=(2, 3)))
    with pytest.raises(ConfigError, match=r"it has a memory of its own, so leave out network\.recurrent"):
        Dreamer(spec, DiscreteSpec(num=2), DreamerConfig(network=NetworkConfig(recurrent="gru")))
    with pytest.raises(ConfigError, match=r"mini_batch_length is 1; it must be greater than 1"):
        DreamerConfig(mini_batch_length=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_sees_the_action_that_is_executed(dtype):
    """Only numbers between two finite bounds are cut to [-1, 1]."""
    spec = BoundedSpec(
        (4,), dtype, minimum=np.array([-2.0, -np.inf, 0.5, -np.inf]), maximum=np.array([2.0, np.inf, np.inf, 3.0])
    )
    raw = torch.tensor([[2.5, -3.0, -1.0, 7.0], [0.5, 0.5, 0.7, 0.5]])
    policy = Dreamer(TensorSpec((2,)), spec, DreamerConfig(network=NetworkConfig(hidden_sizes=(8,)), **SIZES)).policy
    assert_close(policy.encoded(raw), torch.tensor([[1.0, -3.0, 0.5, 3.0], [0.5, 0.5, 0.7, 0.5]]))
    executed = raw_actions(policy.env_action(raw), spec, policy.raw_action_spec)
    assert_close(policy.encoded(raw), executed.float())  # in the precision of the network


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_memory_holds_the_random_action_that_was_executed(env):
    """In the warm-up; and random actions of a box are uniform, not normal and cut."""
    config = DreamerConfig(mini_batch_length=2, burn_in=0, network=NetworkConfig(hidden_sizes=(8,)), **SIZES)
    with create_environment(EnvConfig(name=env, num_envs=4)) as envs:
        dreamer = Dreamer(envs.observation_spec, envs.action_spec, config)
        collector = Collector.of(envs, dreamer)
        collector.collect(n_step=400, random=True)
    buffer = collector.buffer
    drawn = buffer.draw(dataclasses.replace(dreamer.plan, mini_batch_size=200), torch.Generator())
    before, index = dreamer.preprocess(drawn, buffer), drawn.index.numpy()
    held = ~before.first[0] & torch.as_tensor(buffer.reader.ages(index) > 0)
    led = dreamer.policy.encoded(buffer.take("action", buffer.reader.after(index, -1)))
    assert_close(before.before[0][held], led[held])
    if env == "Pendulum-v1":
        torque = dreamer.policy.env_action(buffer.action[...])
        assert float(torque.abs().max()) < 2.0
        assert float(torque.std()) == pytest.approx(4 / math.sqrt(12), rel=0.1)


@pytest.mark.parametrize("option", ["dueling", "noisy"])
def test_layers_that_a_world_model_has_not_are_refused(option):
    config = DreamerConfig(network=NetworkConfig(hidden_sizes=(8,), **{option: True}), **SIZES)
    with pytest.raises(ConfigError, match="neither dueling nor noisy"):
        Dreamer(TensorSpec((2,)), DiscreteSpec(num=2), config)
