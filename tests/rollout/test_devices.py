"""Tests of collecting and evaluating where policies, environments or both are on a device."""

import pytest
import torch

import palaestra.nn.optimizer
from palaestra import PPO, Collector
from palaestra.algorithms import DQN
from palaestra.core import ConfigError, Linear
from palaestra.envs.simulators.vector import TorchVectorEnvironment
from palaestra.envs.tiny import TensorCartPole
from palaestra.rollout import evaluate
from tests.algorithms.parts import collected, environment, tiny_config
from tests.devices import FarTensor, pretend_device
from tests.envs.simulators.test_vector import Genesis

LANES = 3


def cart_pole(device="cpu"):
    return TensorCartPole(LANES, lane_seeds=[1, 2, 3], device=device, max_episode_steps=9)


def made(kind, device, **changes):
    env = cart_pole(device)
    algorithm = kind(env.observation_spec, env.action_spec, tiny_config(kind, **changes)).to(device)
    return env, algorithm


def learned(kind, device, *, compiled=False, **changes):
    """What was drawn, earned and learned, in environments on the device too."""
    env, algorithm = made(kind, device, **changes)
    collector = Collector.of(env, algorithm)
    if compiled:
        algorithm.compile()
        collector.compile()
    episodes = []
    for number in range(4):
        random = ("policy",) if number == 0 and kind is DQN else ()
        episodes += collector.unroll(12, random=random).episodes
        algorithm.update(collector.source)
        algorithm.set_progress(number / 4)
    episodes += collector.drain()
    result = evaluate(algorithm.policy, cart_pole(device), episodes=4, deterministic=False)
    return algorithm, collector, episodes, result


@pytest.mark.parametrize("kind", [PPO, DQN])
def test_environments_on_a_device_teach_the_same_as_on_the_cpu(kind, monkeypatch):
    """ALF-56: rows stay on the device; resets, choices, episodes and evaluations are equal."""
    monkeypatch.setattr(palaestra.nn.optimizer, "_SMALL", 0)
    here, _, episodes, result = learned(kind, "cpu")
    with pretend_device() as device:
        there, collector, episodes_there, result_there = learned(kind, device)
        assert collector.buffer.device.type == device
        assert episodes_there == episodes
        assert episodes
        assert result_there == result
        weights = [parameter.tolist() for parameter in there.model.parameters()]
    assert weights == [parameter.tolist() for parameter in here.model.parameters()]


def test_observations_and_actions_on_a_device_never_leave_it(monkeypatch):
    """Step types are all that a step reads; learning reads scalars."""
    with pretend_device() as device:
        env, algorithm = made(PPO, device)
        collector = Collector.of(env, algorithm)
        collector.unroll(3)
        seen = []
        move = torch.Tensor.cpu

        def cpu(tensor):
            if isinstance(tensor, FarTensor):
                seen.append((tensor.dtype, tuple(tensor.shape)))
            return move(tensor)

        monkeypatch.setattr(torch.Tensor, "cpu", cpu)
        monkeypatch.setattr(torch.Tensor, "to", _watched(torch.Tensor.to, seen))
        collector.unroll(12)
        algorithm.update(collector.source)
    assert seen
    assert set(seen) == {(torch.int32, (LANES,))}


def _watched(move, seen):
    def to(tensor, *args, **named):
        moved = move(tensor, *args, **named)
        if isinstance(tensor, FarTensor) and not isinstance(moved, FarTensor):
            seen.append((tensor.dtype, tuple(tensor.shape)))
        return moved

    return to


def test_environments_on_a_device_need_a_policy_there():
    with pretend_device() as device:
        env = cart_pole(device)
        with pytest.raises(
            ConfigError, match=rf"environments are on {device} and the policy is on the CPU.*run.device"
        ):
            Collector.of(env, PPO(env.observation_spec, env.action_spec))


def test_a_collector_goes_on_from_a_checkpoint_with_environments_on_a_device():
    """F25: what was saved comes back from the CPU."""
    with pretend_device() as device:
        env, algorithm = made(PPO, device)
        collector = Collector.of(env, algorithm)
        collector.unroll(5)
        twin_env, twin_algorithm = made(PPO, device)
        twin = Collector.of(twin_env, twin_algorithm)
        state = collector.state()
        state["time_step"] = {
            key: getattr(value, "cpu", lambda v=value: v)() for key, value in state["time_step"].items()
        }
        twin.load_state(state)
        assert twin.current().observation.device.type == device  # which a compiled unroll begins with
        twin.buffer.load_state_tensors(collector.buffer.state_tensors())
        twin_algorithm.load_state_tensors(algorithm.state_tensors())
        for one in (collector, twin):
            one.unroll(7)
        assert twin.buffer.newest(7).observation.tolist() == collector.buffer.newest(7).observation.tolist()
        assert (
            twin.buffer.newest(7).policy_info.log_prob.tolist()
            == collector.buffer.newest(7).policy_info.log_prob.tolist()
        )


def test_episodes_that_end_within_a_step_are_counted_on_a_device():
    """A simulator's lanes begin anew in the step in which they end."""

    def trained(device):
        world = Genesis()
        world.device, world.count, world.falls = device, world.count.to(device), world.falls.to(device)
        env = TorchVectorEnvironment(world, lane_seeds=[1, 2, 3])
        algorithm = PPO(env.observation_spec, env.action_spec, tiny_config(PPO)).to(device)
        collector = Collector.of(env, algorithm)
        episodes = collector.unroll(12).episodes + collector.drain()
        return sorted((one.env_id, one.episode_return, one.length) for one in episodes)

    with pretend_device() as device:
        there = trained(device)
    assert there == trained("cpu") != []


def test_values_that_are_not_finite_are_found_on_a_device():
    """F5: it is named with lane and element there too."""
    from palaestra.core import NonFiniteError

    class Broken(TensorCartPole):
        def observe(self, state):
            seen = super().observe(state)
            return torch.where(torch.arange(4, device=seen.device) == 2, seen / 0 if self.broken else seen, seen)

        broken = False

    with pretend_device() as device:
        env = Broken(LANES, lane_seeds=[1, 2, 3], device=device)
        algorithm = PPO(env.observation_spec, env.action_spec, tiny_config(PPO)).to(device)
        collector = Collector.of(env, algorithm)
        collector.unroll(2)
        env.broken = True
        with pytest.raises(NonFiniteError, match=r"environment 0 emitted observation\[2\] = (inf|-inf|nan)"):
            collector.unroll(2)


@pytest.mark.parametrize("kind", ["recurrent", "recurrent-masked"])
def test_memories_cross_with_what_they_belong_to(kind):
    """A recurrent policy on a device, environments on the CPU: states are stored, and cleared where episodes begin."""
    with pretend_device() as device, environment(kind) as env:
        algorithm, _ = collected("ppo", kind)
        algorithm.to(device)
        collector = Collector.of(env, algorithm)
        collector.unroll(12)
        unroll = collector.buffer.newest(12)
        assert type(unroll.state[next(iter(algorithm.policy.state_spec))]) is torch.Tensor
        assert algorithm.policy.initial_state(2).values()[0].device.type == "cpu"
        first = unroll.step_type[:-1] == 0
        assert first[1:].any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")
@pytest.mark.parametrize("kind", [PPO, DQN])
def test_environments_on_a_gpu_are_learned_from(kind):
    algorithm, collector, episodes, result = learned(kind, "cuda")
    assert collector.buffer.device.type == "cuda"
    assert episodes
    assert result.episodes == 4
    assert algorithm.num_gradient_steps > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch with CUDA")
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
@pytest.mark.parametrize(("kind", "changes"), [(PPO, {}), (DQN, {}), (DQN, {"epsilon": Linear(0.9, 0.1)})])
def test_unrolls_on_a_gpu_are_one_graph_with_the_numbers_of_eager_code(kind, changes, monkeypatch):
    monkeypatch.setattr("palaestra.nn.fast.can_compile", lambda: False)  # of gradients; steps are compiled always
    here, _, episodes, result = learned(kind, "cuda", **changes)
    there, _, episodes_there, result_there = learned(kind, "cuda", compiled=True, **changes)
    assert episodes_there == episodes
    assert result_there == result
    for found, expected in zip(there.model.parameters(), here.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
