"""Tests of FlashSAC, against a plain transcription of its paper's code, of what keeps its length, and of held noise."""

import copy
import dataclasses
import math

import pytest
import torch
from torch.nn.functional import linear
from torch.testing import assert_close

from palaestra import Collector, NetworkConfig, load_policy, save_policy
from palaestra.algorithms import FlashSAC, FlashSACConfig
from palaestra.core import ConfigError, TimeStep
from palaestra.nn import EnsembleNetwork
from palaestra.nn.network import mlp_of
from palaestra.policies import HeldNoise, SquashedGaussianPolicy
from palaestra.rollout.compiled import CompiledStep
from tests.algorithms.parts import collected, environment, first_minibatch
from tests.algorithms.test_xqc import projected
from tests.rollout.test_compiled import Drift


def rows():
    return torch.randn(3, 3, generator=torch.Generator().manual_seed(5))


def ready(**settings):
    """An algorithm away from its start, and its next minibatch."""
    algorithm, collector = collected("flash_sac", "inverted-blocks", policy_period=1, **settings)
    for _ in range(3):
        algorithm.update(collector.buffer)
    return algorithm, first_minibatch(algorithm, collector.buffer)


# -- a plain transcription of github.com/Holiday-Robot/FlashSAC: layers, update_critic, update_actor


def parameters(state, prefix, member=None):
    """Plain tensors by name, of one network or of a member of an ensemble."""
    found = {name.removeprefix(prefix): value.detach().clone() for name, value in state.items()}
    found = {name: value for name, value in found.items() if name.startswith("layers.")}
    if member is not None:
        found = {name: value[member] if value.ndim else value for name, value in found.items()}
        found = {name: value.T if name.endswith("weight") else value.squeeze(0) for name, value in found.items()}
        found = {name.replace("norm.norm", "norm"): value for name, value in found.items()}
    return {name: value.requires_grad_(value.is_floating_point()) for name, value in found.items()}


def norm(given, prefix, x, train):
    mean, variance = given[f"{prefix}.mean"].detach(), given[f"{prefix}.variance"].detach()
    if train:
        mean, variance = x.mean(0), ((x - x.mean(0)) ** 2).mean(0)
    return (x - mean) / torch.sqrt(variance + 0.001) * given[f"{prefix}.gain"] + given[f"{prefix}.shift"]


def outputs(given, x, train):
    """Embed the normalised input, a block that adds to it, the root mean square to 1, and the last dense layer."""
    x = linear(norm(given, "layers.0.norm", x, train), given["layers.0.linear.weight"])
    inside = norm(given, "layers.1.up_norm", linear(x, given["layers.1.up.weight"]), train).relu()
    x = x + norm(given, "layers.1.down_norm", linear(inside, given["layers.1.down.weight"]), train).relu()
    x = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * given["layers.2.scale.factor"]
    return linear(x, given["layers.3.weight"], given["layers.3.bias"])


def actions(out, noise):
    """Of a normal distribution pressed into [-1, 1], with their log-probabilities; log σ lies between -10 and 2."""
    mean, raw = out.chunk(2, -1)
    normal = torch.distributions.Normal(mean, (-10 + 12 * 0.5 * (1 + raw.tanh())).exp())
    before = mean + normal.stddev * noise
    correction = 2 * (math.log(2) - before - torch.nn.functional.softplus(-2 * before))
    return before.tanh(), (normal.log_prob(before) - correction).sum(-1)


def test_losses_and_gradients_are_those_of_a_plain_transcription():
    """Both ends in one call, of the actor and the target critics too; the whole distribution of the lesser."""
    algorithm, batch = ready(gamma=0.9, num_atoms=11, min_return=-2.0, max_return=2.0, initial_temperature=0.3)
    state = algorithm.model.state_dict()
    scale, count = algorithm.reward_scale(), len(batch.reward)
    atoms, alpha = torch.linspace(-2, 2, 11), state["component.temperature.log"].exp()
    actor = parameters(state, "component.actor.mlp.")
    critics, targets = (
        [parameters(state, f"component.{name}.", k) for k in range(2)] for name in ("critic", "target_critic")
    )
    x = torch.cat([batch.observation, batch.next_observation])
    with torch.no_grad():
        next_action, next_log_prob = actions(outputs(actor, batch.next_observation, False), batch.next_noise)
        pairs = torch.cat([x, torch.cat([batch.action, next_action])], -1)
        probs = torch.stack([outputs(target, pairs, True)[count:].softmax(-1) for target in targets])
        least = (probs @ atoms).argmin(0)
        chosen = torch.stack([probs[k, row] for row, k in enumerate(least)])
        wanted = projected(chosen, batch.reward / scale, batch.bootstrap, alpha * next_log_prob, atoms)
    logs = [outputs(critic, pairs, True)[:count].log_softmax(-1) for critic in critics]
    critic_loss = torch.stack([-(wanted * log).sum(-1) for log in logs]).mean()
    action, log_prob = actions(outputs(actor, x, True)[:count], batch.noise)
    seen = torch.cat([batch.observation, action], -1)
    q = torch.stack([outputs(critic, seen, False).softmax(-1) @ atoms for critic in critics])
    actor_loss = (alpha * log_prob - q.amin(0)).mean()

    gradients = algorithm.gradients(batch)
    assert_close(gradients.metrics["critic"], critic_loss.detach(), rtol=1e-4, atol=1e-5)
    assert_close(gradients.metrics["actor"], actor_loss.detach(), rtol=1e-4, atol=1e-5)
    entropy = 0.5 * 2 * math.log(2 * math.pi * math.e * 0.15**2)
    assert algorithm.target_entropy == pytest.approx(entropy)
    assert_close(gradients.values["temperature.log"], -(log_prob.mean() + entropy).detach(), rtol=1e-4, atol=1e-4)
    for name in ("layers.0.norm.gain", "layers.1.up.weight", "layers.1.down_norm.shift", "layers.2.scale.factor"):
        (plain,) = torch.autograd.grad(actor_loss, actor[name], retain_graph=True)
        assert_close(gradients.values[f"actor.mlp.{name}"], plain, rtol=1e-3, atol=1e-5)
        mine = gradients.values[f"critic.{name.replace('norm.', 'norm.norm.')}"]
        for member, critic in enumerate(critics):
            (plain,) = torch.autograd.grad(critic_loss, critic[name], retain_graph=True)
            assert_close(mine[member].T if "weight" in name else mine[member].squeeze(0), plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["adam", "sgd", "NAdam"])
def test_after_each_step_weights_and_scales_have_their_lengths_again(kind):
    """Columns of dense layers 1, gains and shifts of a normalisation together √n, and gains of the last one √n."""
    algorithm, collector = collected(
        "flash_sac", "inverted-blocks", policy_period=1, optimizers=dict.fromkeys(("actor", "critic"), kind)
    )
    assert algorithm.model.optimizers["critic"].option.cls == kind
    before = copy.deepcopy(dict(algorithm.critic.named_parameters()))
    algorithm.update(collector.buffer)
    for component in ("actor", "critic"):
        found = dict(algorithm.model.component[component].named_parameters())
        for name, value in found.items():
            if name.endswith("weight"):
                assert_close(value.norm(dim=1), torch.ones_like(value.norm(dim=1)))
            if name.endswith("gain"):
                squares = value.square() + found[name.removesuffix("gain") + "shift"].square()
                assert_close(squares.mean(-1), torch.ones_like(squares.mean(-1)))
            if name.endswith("factor"):
                assert_close(value.square().mean(-1), torch.ones_like(value.square().mean(-1)))
    changed = [name for name, value in algorithm.critic.named_parameters() if not torch.equal(value, before[name])]
    assert changed == list(before)


def test_an_ensemble_of_blocks_is_its_members():
    config = NetworkConfig(hidden_sizes=(6, 6), activation="relu", block="flash")
    members = [mlp_of(4, (6, 6), 2, config) for _ in range(3)]
    ensemble = EnsembleNetwork(environment("continuous", 1).observation_spec, 2, 3, config, action_size=1)
    with torch.no_grad():
        for name, value in ensemble.named_parameters():
            for k, member in enumerate(members):
                own = dict(member.named_parameters())[name.replace("norm.norm", "norm")]
                value[k] = own.T if own.ndim > 1 else own.add_(0.1 * k)
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    seen, alone = [], [[] for _ in members]
    together = ensemble(x[:, :3], x[:, 3:], moments=seen)
    assert_close(together, torch.stack([m(x, own) for m, own in zip(members, alone, strict=True)]))
    for number, moment in enumerate(seen):
        assert_close(moment.squeeze(1), torch.stack([own[number] for own in alone]))
    assert_close(ensemble(x[:, :3], x[:, 3:], members=slice(1, 2))[0], members[1](x))


# -- exploration


def held(noise, generator, steps, lanes=2):
    return torch.stack([noise.noise(torch.empty(lanes, 3), generator).clone() for _ in range(steps)])


def test_noise_is_held_as_long_as_the_inverse_square_of_a_number_says():
    generator = torch.Generator().manual_seed(0)
    drawn = held(HeldNoise(longest=4), generator, 40_000)[:, :, 0]
    assert_close(drawn.std(), torch.tensor(1.0), rtol=0.03, atol=0.0)
    starts = (drawn.diff(dim=0) != 0).nonzero()
    assert set(starts[:, 1].tolist()) == {0, 1} and len(starts) % 2 == 0, "all lanes change together"
    lengths = starts[starts[:, 1] == 0][:, 0].diff()
    shares = torch.stack([(lengths == n).double().mean() for n in range(1, 5)])
    wanted = torch.tensor([1.0, 1 / 4, 1 / 9, 1 / 16], dtype=torch.float64)
    assert_close(shares, wanted / wanted.sum(), rtol=0.0, atol=0.01)
    assert len(set(held(HeldNoise(longest=1), generator, 50)[:, 0, 0].tolist())) == 50
    with pytest.raises(ConfigError, match="longest=0; noise is held for at least 1 step"):
        HeldNoise(longest=0)


def test_a_policy_explores_with_held_noise_and_goes_on_with_it_from_a_checkpoint():
    algorithm, collector = collected("flash_sac", "inverted-blocks")
    collector.unroll(5)
    state = copy.deepcopy(algorithm.state_tensors())
    assert {"exploration.noise", "exploration.left"} <= state.keys()
    step = TimeStep(observation=rows())
    following = [algorithm.policy.act(step).action for _ in range(20)]
    assert 1 < len({tuple(action.flatten().tolist()) for action in following}) < 20
    again, _ = collected("flash_sac", "inverted-blocks", seed=4)
    again.load_state_tensors(state)
    assert_close([again.policy.act(step).action for _ in range(20)], following)
    algorithm.policy.eval()
    assert not torch.equal(algorithm.policy.act(step).action, algorithm.policy.act(step).action), "not in evaluations"


def test_a_saved_policy_has_the_range_of_its_deviations(tmp_path):
    algorithm, _ = collected("flash_sac", "inverted-blocks")
    save_policy(algorithm.policy, tmp_path)
    loaded = load_policy(tmp_path)
    assert isinstance(loaded, SquashedGaussianPolicy)
    seen = rows()
    assert_close(loaded.distribution(seen).log_std, algorithm.policy.distribution(seen).log_std)
    assert loaded.distribution(1000 * seen).log_std.min() >= -10


# -- numbers, and compiled steps


def test_numbers_are_those_of_the_papers_code():
    """configs/agent/flashSAC.yaml and scripts/run_mujoco.sh."""
    config = FlashSACConfig()
    assert (config.learning_rate, config.tau, config.policy_period, config.mini_batch_size) == (3e-4, 0.01, 2, 512)
    assert (config.num_atoms, config.min_return, config.max_return) == (101, -5.0, 5.0)
    assert (config.network.hidden_sizes, config.actor_hidden_sizes) == ((256, 256), (128, 128))
    with environment("continuous", 1) as env:
        algorithm = FlashSAC(env.observation_spec, env.action_spec)
        assert algorithm.critic.layers[1].up.weight.shape == (2, 256, 1024)
        assert algorithm.policy.network.mlp.layers[1].up.weight.shape == (512, 128)
        fresh = FlashSAC(env.observation_spec, env.action_spec, dataclasses.replace(config, longest_noise=1))
        assert fresh.policy.exploration is None
        with pytest.raises(ConfigError, match=r"num_atoms is 1, from min_return=-5\.0"):
            FlashSAC(env.observation_spec, env.action_spec, FlashSACConfig(num_atoms=1))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_compiled_step_learns_what_an_eager_one_does():
    results = []
    for compiled in (False, True):
        algorithm, collector = collected("flash_sac", "inverted-blocks")
        if compiled:
            torch.compiler.reset()
            algorithm.compile()
        for _ in range(4):
            algorithm.update(collector.buffer)
        results.append(algorithm.policy.distribution(rows()).mean.detach())
    assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def test_a_graph_that_acts_draws_what_is_drawn_outside():
    """Noise that is drawn to learn its shape, before the graph is compiled, does not count."""
    found: list[torch.Tensor] = []
    for in_graph in (False, True):
        env = Drift(2, lane_seeds=[1, 2], max_episode_steps=15)
        algorithm = FlashSAC(env.observation_spec, env.action_spec)
        collector = Collector.of(env, algorithm)
        collector.unroll(3)
        if in_graph:
            graph = CompiledStep(env, algorithm.policy, compiles=False)
            graph.prepare(4)
            collector.compile(graph)
        collector.unroll(8)
        found.append(collector.buffer.recent("action", 11))
    assert_close(found[1], found[0], rtol=0.0, atol=1e-6)
