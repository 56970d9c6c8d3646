"""Updates that go through the whole replay buffer, as a setting of algorithms: `num_epochs`."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import palaestra
from palaestra import EnvConfig, create_environment
from palaestra.algorithms import ALGORITHMS
from palaestra.config.config import config_from_mapping
from palaestra.core import ConfigError, Replay
from tests.algorithms.parts import collected
from tests.cli.parts import exit_code, output

SEEN: list[list[int]] = []
SIZES: list[int] = []
CHAIN = "palaestra.envs.tiny:Chain"
SHORT = ("--env.num-envs", "4", "--env.max-episode-steps", "7", "--trainer.eval-episodes", "1", "--run.no-tensorboard")
SHORT += ("--trainer.total-env-steps", "75", "--algorithm.network.hidden-sizes", "4")


class NotingDQN(palaestra.DQN):
    """Notes which rows of the buffer each minibatch has, and how many the buffer has in each update."""

    def losses(self, batch: Any) -> Any:
        SEEN.append(batch.index.tolist())
        return super().losses(batch)

    def preprocess(self, batch: Any, source: Any) -> Any:
        SIZES.append(len(source.starts(1)))
        return super().preprocess(batch, source)


class NotingSAC(palaestra.algorithms.SAC):
    """Notes which rows its sequences have, by the number that each observation is."""

    def losses(self, batch: Any) -> Any:
        seen = batch.observation[..., 0].round().long()
        valid = batch.valid.bool()
        for column, counts in zip(seen.T.tolist(), valid.T.tolist(), strict=True):
            kept = list(itertools.compress(column, counts))
            assert all(later == earlier + 1 for earlier, later in itertools.pairwise(kept))
            SEEN.append(kept)
        SIZES.append(int(batch.valid.sum()))
        return super().losses(batch)


@pytest.mark.parametrize("capacity", [48, 1000])
def test_every_row_of_the_buffer_is_learned_from_so_often_in_each_update(tmp_path, monkeypatch, capsys, capacity):
    """ALF-08: from the command line: U passes in new orders, N / mbs steps each, of whatever the buffer holds."""
    monkeypatch.chdir(tmp_path)
    SEEN.clear()
    SIZES.clear()
    settings = ("--algorithm.num-epochs", "3", "--algorithm.mini-batch-size", "10", "--algorithm.unroll-length", "3")
    settings += ("--algorithm.capacity", str(capacity), "--algorithm.learning-starts", "20")
    assert exit_code("train", f"{__name__}:NotingDQN", CHAIN, *SHORT, *settings) == 0, output(capsys)
    assert len(SIZES) >= 4 and (max(SIZES) <= 48) == (capacity == 48)
    batches = iter(SEEN)
    for size in SIZES:
        steps = round(size / 10)
        passes = [list(itertools.islice(batches, steps)) for _ in range(3)]
        flat = [list(itertools.chain(*one)) for one in passes]
        assert all(len(rows) == len(set(rows)) == size for rows in flat)
        assert Counter(itertools.chain(*flat)) == dict.fromkeys(flat[0], 3)
        assert flat[0] != flat[1] != flat[2] != sorted(flat[2])
        assert all(len(one) in (size // steps, -(-size // steps)) for one in itertools.chain(*passes))
    assert not list(batches)


class Counting(palaestra.envs.SingleEnvironment):
    """Observations count the steps of an environment without end."""

    observation_spec = palaestra.core.TensorSpec((1,))
    action_spec = palaestra.core.BoundedSpec((1,), minimum=np.array(-1.0), maximum=np.array(1.0))

    def begin_episode(self, seed: int) -> Any:
        self.steps = 0
        return palaestra.core.restart(np.zeros(1, np.float32))

    def advance(self, action: Any) -> Any:
        self.steps += 1
        return palaestra.core.transition(np.full(1, self.steps, np.float32), 0.0)


def test_sequences_keep_their_time_order_and_have_every_row_once():
    """ALF-08: of a recurrent policy: `(mini_batch_size, mini_batch_length)`, steps inside a sequence consecutive."""
    network = palaestra.NetworkConfig(hidden_sizes=(4,), recurrent="gru", recurrent_size=4)
    kind: Any = NotingSAC.config_class
    config = kind(num_epochs=2, mini_batch_size=8, mini_batch_length=4, burn_in=0, learning_starts=0, network=network)
    with create_environment(EnvConfig(name=f"{__name__}:Counting", num_envs=2)) as env:
        sac = NotingSAC(env.observation_spec, env.action_spec, config)
        collector = palaestra.Collector.of(env, sac)
        collector.collect(n_step=2 * 33)
        SEEN.clear()
        SIZES.clear()
        info = sac.update(collector.buffer)
    assert info.gradient_steps == len(SIZES) == 2 * 8 and info.rows_trained == sum(SIZES) == 2 * 2 * 32
    assert Counter(itertools.chain(*SEEN)) == dict.fromkeys(range(32), 2 * 2)  # of two environments, twice
    assert SEEN[:16] != SEEN[16:] and sorted(SEEN[:16]) == sorted(SEEN[16:])


def test_alf_08_a_pass_of_muzero_unrolls_its_model_from_every_row_that_it_can():
    """ALF-08: of which most were left out: each row is the first of one sequence, though these share rows."""
    algorithm, collector = collected("muzero", "discrete", num_epochs=1, gradient_steps=1, mini_batch_sequences=4)
    unrolled: list[list[float]] = []
    losses = algorithm.losses

    def noting(batch: Any) -> Any:
        unrolled.extend(batch.observation[0].tolist())
        return losses(batch)

    algorithm.losses = noting
    algorithm.update(collector.buffer)
    rows, kinds = (collector.buffer.recent(name, 12)[:8] for name in ("observation", "step_type"))
    begins = rows[kinds != 2]  # five rows, two unrolled and two looked ahead, and what follows them, are needed of 13
    assert len(begins) == 3 * 7
    assert Counter(map(tuple, unrolled)) == Counter(map(tuple, begins.tolist()))


def test_all_algorithms_that_replay_have_it_and_what_cannot_be_is_refused(tmp_path):
    """ALF-08: but for REDQ, which draws its critics for a number of gradient steps that is known."""
    for name, kind in ALGORITHMS.items():
        if kind.config_class.plan_class is Replay and name != "redq":
            settings = {"prioritized": False} if name == "rainbow" else {}
            plan: Any = kind.config_class(num_epochs=2, gradient_steps=1, **settings).plan
            assert plan.num_epochs == 2
    with pytest.raises(ConfigError, match=r"gradient_steps, here 1, to 1, and leave out priorities, here Prioritized"):
        _ = palaestra.DQNConfig(num_epochs=1, prioritized=True).plan
    with pytest.raises(ConfigError, match=r"set gradient_steps, here 2, to 1"):
        Replay(unroll_length=1, num_epochs=1, gradient_steps=2)
    with pytest.raises(ConfigError, match="num_epochs is 0; it must be greater than 0"):
        Replay(unroll_length=1, num_epochs=0)
    there = {"run__directory": str(tmp_path), "algorithm__num_epochs": 1}
    workers = {"distributed__runtime": "local", "distributed__num_workers": 1, "distributed__mode": "async"}
    with pytest.raises(ConfigError, match=r"through its whole buffer in every update \(num_epochs=1\)"):
        palaestra.train("dqn", CHAIN, **there, **workers)


def test_alf_08_a_preset_does_not_stand_in_its_way(tmp_path, monkeypatch, capsys):
    """ALF-08: of an environment with tuned settings, from a mapping as from the command line."""
    monkeypatch.chdir(tmp_path)
    tuned: Any = palaestra.preset("dqn", "CartPole-v1")
    assert tuned.algorithm.gradient_steps > 1
    given: Any = {"algorithm": {"num_epochs": 2}}
    config = config_from_mapping(palaestra.ExperimentConfig, given, base=tuned)
    assert config.algorithm.plan.num_epochs == 2 and config.algorithm.mini_batch_size == tuned.algorithm.mini_batch_size
    there = ("--algorithm.num-epochs", "2", "--dry-run")
    assert exit_code("train", "dqn", "CartPole-v1", *there) == 0, output(capsys)
    given["algorithm"]["gradient_steps"] = 2
    both = config_from_mapping(palaestra.ExperimentConfig, given, base=tuned)
    with pytest.raises(ConfigError, match=r"set gradient_steps, here 2, to 1"):
        _ = both.algorithm.plan
