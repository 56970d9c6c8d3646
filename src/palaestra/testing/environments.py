"""`EnvironmentContract` and `BatchContract`: what every environment has to keep, single or stepped as one."""

import functools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palaestra.core import TimeStep, check_time_step, load_tensors, save_tensors, spec_leaves, tree_map, tree_paths
from palaestra.envs import Environment, LaneEnvironment, ProcessDriver, SerialDriver, SingleEnvironment, space_from_spec
from palaestra.envs.check.check import check
from palaestra.envs.contract.nest import batched_nest, flatten, row_of
from palaestra.envs.contract.spaces import sample_allowed

__all__ = ["BatchContract", "EnvironmentContract"]


class BatchContract(ABC):
    """A suite for environments that are stepped as one: a `BatchEnvironment` of yours, or any `Environment`.

    Examples:
        >>> from palaestra.envs.tiny import TensorCartPole
        >>> class TestMine(BatchContract):
        ...     def batch(self, seeds=(1, 2)):
        ...         return TensorCartPole(len(seeds), lane_seeds=seeds)
        >>> TestMine().test_a_lane_does_not_depend_on_the_others()
    """

    steps: int = 60
    """Steps of each test; several episodes should end in them."""

    @abstractmethod
    def batch(self, seeds: tuple[int, ...] = (1, 2)) -> Environment:
        """As many environments as there are seeds.

        Args:
            seeds: one for each lane.
        """

    def elsewhere(self) -> Environment:
        """The same batch, made in another way that must not matter: other threads, other processes."""
        return self.batch()

    # -- the suite

    def test_rows_fit_the_specs(self) -> None:
        """Shapes, dtypes and bounds of observations; LAST is followed by FIRST, which has no reward."""
        with self.batch() as env:
            before = None
            for time_step in played(env, self.steps):
                check_time_step(time_step)
                leaves = tree_paths(time_step.observation)
                for path, spec in spec_leaves(env.observation_spec).items():
                    for row in leaves[path]:
                        assert spec.problem(row.numpy()) is None, f"observation {path}: {spec.problem(row.numpy())}"
                first = time_step.step_type == 0
                assert not time_step.reward[first].any()
                assert before is None or torch.equal(first, before.step_type == 2)
                before = time_step

    def test_a_lane_does_not_depend_on_the_others(self) -> None:
        """Alone it gives the same rows, where a seed determines episodes and not the batch."""
        with self.batch((1, 2)) as both, self.batch((2,)) as alone:
            if both.seeding == "per_episode":
                draw, rows = allowed_actions(both), (both.reset(), alone.reset())
                assert torch.equal(rows[0].step_type[1:], rows[1].step_type)
                for _ in range(self.steps):
                    action = draw(rows[0])
                    rows = both.step(action), alone.step(tree_map(lambda leaf: leaf[1:], action))
                    ours, theirs = (tree_paths(time_step.observation) for time_step in rows)
                    assert all(torch.equal(ours[path][1:], theirs[path]) for path in ours)
                    assert torch.equal(rows[0].reward[1:], rows[1].reward)

    def test_seeds_decide_the_whole_stream(self) -> None:
        """Equal seeds and actions give equal streams, made here or elsewhere."""
        with self.batch() as one, self.elsewhere() as two:
            for ours, theirs in zip(played(one, self.steps), played(two, self.steps), strict=True):
                assert_same(ours, theirs)

    def test_an_interrupted_stream_goes_on_exactly(self) -> None:
        """Through a file, from the beginning, from inside of an episode, and after several."""
        with self.batch() as one, tempfile.TemporaryDirectory() as folder:
            for done in (0, 3, self.steps):
                *_, newest = played(one, done, seed=done)
                save_tensors(Path(folder) / "state", one.state_dict())
                with self.batch((8, 9)) as two:
                    two.load_state_dict(load_tensors(Path(folder) / "state"))
                    draw = allowed_actions(one, seed=7)
                    for _ in range(self.steps // 2):
                        action = draw(newest)
                        newest = one.step(action)
                        assert_same(newest, two.step(action))

    def test_what_was_returned_is_never_written_to_again(self) -> None:
        """An environment may write every observation into the same array; a batch copies it."""
        with self.batch() as env:
            draw, kept, time_step = allowed_actions(env), [], env.reset()
            for _ in range(20):
                time_step = env.step(draw(time_step))
                kept.append((time_step, tree_map(torch.clone, time_step)))
        for time_step, copy in kept:
            assert_same(time_step, copy)


class EnvironmentContract(BatchContract):
    """A suite for one environment, with the wrappers that you put around it.

    Examples:
        >>> from palaestra.envs import load
        >>> class TestCatch(EnvironmentContract):
        ...     def make(self, env_id=0):
        ...         return load("palaestra.envs.tiny:Catch", env_id=env_id)
        >>> TestCatch().test_what_comes_out_fits_the_specs()
    """

    processes: bool = True
    """Whether it has to give the same stream in worker processes; `make` is pickled then."""

    @abstractmethod
    def make(self, env_id: int = 0) -> SingleEnvironment:
        """The environment with its wrappers, for example `load("my_package:MyEnv", env_id=env_id)`.

        Args:
            env_id: its number in a batch.
        """

    def batch(self, seeds: tuple[int, ...] = (1, 2), *, processes: bool = False) -> LaneEnvironment:
        """A batch of it.

        Args:
            seeds: one for each lane.
            processes: whether each lane is stepped in a worker process of its own.
        """
        factories = [functools.partial(self.make, env_id=lane) for lane in range(len(seeds))]
        if processes:
            return LaneEnvironment(ProcessDriver(factories, num_workers=len(seeds)), lane_seeds=list(seeds))
        return LaneEnvironment(SerialDriver([make() for make in factories]), lane_seeds=list(seeds))

    def elsewhere(self) -> Environment:
        return self.batch(processes=self.processes)

    # -- the suite

    def test_it_keeps_the_rules_of_environments(self) -> None:
        """Step types, specs, seeds, resets, ends of episodes: what `palaestra check-env` looks at."""
        report = check(self.make, steps=self.steps)
        assert report.ok, f"{report}"

    def test_what_comes_out_fits_the_specs(self) -> None:
        """Shapes, dtypes and bounds of observations and rewards; a FIRST row has no reward."""
        env = self.make()
        env.seed(5)
        space = space_from_spec(env.action_spec)
        space.seed(1)
        time_step = env.reset()
        for number in range(self.steps + 1):
            if number:
                time_step = env.step(sample_allowed(space, time_step.observation))
            check_time_step(time_step)
            leaves = flatten(time_step.observation, env.observation_spec)
            for (path, spec), leaf in zip(spec_leaves(env.observation_spec).items(), leaves, strict=True):
                assert spec.problem(leaf) is None, f"observation {path}: {spec.problem(leaf)}"
            assert env.reward_spec.problem(np.asarray(time_step.reward, np.float32)) is None
            assert time_step.step_type != 0 or not np.any(time_step.reward)
        env.close()


def random_actions(env: Environment, seed: int = 0) -> Iterator[Any]:
    """Batched random actions without an end, whatever masks say.

    Args:
        env: whose action spec they fit.
        seed: of all lanes.
    """
    draw = allowed_actions(env, seed)
    while True:
        yield draw(None)


def allowed_actions(env: Environment, seed: int = 0) -> Callable[[TimeStep | None], Any]:
    """What draws batched random actions, of those that the masks of the time step before them allow.

    Args:
        env: whose action spec they fit.
        seed: of all lanes.
    """
    spaces = [space_from_spec(env.action_spec) for _ in range(env.batch_size)]
    for lane, space in enumerate(spaces):
        space.seed(1000 * seed + lane)

    def draw(before: TimeStep | None) -> Any:
        seen = [before and row_of(before.observation, lane, env.observation_spec) for lane in range(env.batch_size)]
        return batched_nest(list(map(sample_allowed, spaces, seen)), env.action_spec)

    return draw


def played(env: Environment, steps: int, seed: int = 0) -> list[TimeStep]:
    """Time steps of random play, with that of the reset.

    Args:
        env: which is reset.
        steps: after the reset.
        seed: of the actions.
    """
    draw, found = allowed_actions(env, seed), [env.reset()]
    for _ in range(steps):
        found.append(env.step(draw(found[-1])))
    return found


def assert_same(one: TimeStep, two: TimeStep) -> None:
    """Fails unless two batched time steps are equal to the bit, with their dtypes."""
    ours, theirs = tree_paths(one), tree_paths(two)
    assert ours.keys() == theirs.keys()
    for path, leaf in ours.items():
        assert leaf.dtype == theirs[path].dtype, path
        assert torch.equal(leaf.nan_to_num(123.0), theirs[path].nan_to_num(123.0)), path
