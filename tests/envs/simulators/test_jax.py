"""JAX packages beside themselves: the same keys give the same bits, ends mean what they say, resumes are exact.

What needs a package is skipped where it is missing, and slow, for each has to be compiled.
"""

import numpy as np
import pytest
import torch

import palaestra
from palaestra.core import Batch
from palaestra.core.seeding import episode_seed
from palaestra.envs.simulators.jax import JaxBatch
from palaestra.envs.simulators.jax_packages import PACKAGES
from palaestra.envs.worlds.board_games import ConnectFour
from palaestra.testing import BatchContract
from palaestra.training import Callback

SEEDS = (3, 7, 11)
LIMIT = 6
# One task of each package, with a time limit that random play reaches.
TASKS = {
    "gymnax": ("gymnax:MountainCar-v0", {"max_steps_in_episode": LIMIT}),
    "brax": ("brax:inverted_pendulum", {"backend": "generalized", "episode_length": LIMIT}),
    "playground": ("playground:CartpoleBalance", {"episode_length": LIMIT}),
    "jumanji": ("jumanji:Maze-v0", {"time_limit": LIMIT}),
    "pgx": ("pgx:connect_four", {}),
    "craftax": ("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": LIMIT}),
    "navix": ("navix:Navix-Empty-5x5-v0", {"max_steps": LIMIT}),
    "xminigrid": ("xminigrid:MiniGrid-Empty-5x5", {"max_steps": LIMIT}),
}


def needs(package):
    for module in PACKAGES[package].modules:
        pytest.importorskip(module)


def batch(package, seeds=SEEDS, **more):
    name, kwargs = TASKS[package]
    limit = {"max_episode_steps": LIMIT} if package == "pgx" else {}
    return JaxBatch(name, len(seeds), lane_seeds=seeds, **kwargs, **limit, **more)


def chosen(env, time_step, generator):
    """Random actions that are allowed."""
    if not hasattr(env.action_spec, "num"):
        return torch.from_numpy(generator.uniform(-1, 1, (env.batch_size, *env.action_spec.shape)).astype(np.float32))
    values = generator.random((env.batch_size, env.action_spec.num))
    if isinstance(env.observation_spec, dict):
        values += time_step.observation.action_mask.numpy()
    return torch.from_numpy(values.argmax(1))


# -- each package beside its own stepping


def own(package):
    """Reset and step as the package's documentation has them: (reset(key), step(key, state, action), shown(result))."""
    import jax

    name, kwargs = TASKS[package]
    name = name.partition(":")[2]
    if package == "gymnax":
        import gymnax

        env, params = gymnax.make(name)
        params = params.replace(**kwargs)

        def step(key, state, action):
            _, state, reward, terminated, truncated, info = env.step(key, state, action, params)
            return state, info["final_observation"], reward, terminated, truncated

        return lambda key: env.reset(key, params)[::-1], step
    if package == "craftax":
        from craftax.craftax_env import make_craftax_env_from_name

        env = make_craftax_env_from_name(name, auto_reset=False)
        params = env.default_params.replace(**kwargs)

        def step(key, state, action):
            observation, state, reward, done, _ = env.step(key, state, action, params)
            dead = state.player_health <= 0
            return state, observation, reward, done & dead, done & ~dead

        return lambda key: env.reset(key, params)[::-1], step
    if package == "pgx":
        import pgx

        env = pgx.make(name)

        def seen(state):
            return {"observation": state.observation, "action_mask": state.legal_action_mask}

        def step(key, state, action):
            after = env.step(state, action, key)
            return after, seen(after), after.rewards[state.current_player], after.terminated, after.truncated

        return lambda key: (env.init(key), seen(env.init(key))), step
    if package == "jumanji":
        import jumanji

        env = jumanji.make(name, **kwargs)

        def seen(time_step):
            shown = time_step.observation._asdict()
            return {name: value._asdict() if hasattr(value, "_asdict") else value for name, value in shown.items()}

        def reset(key):
            state, time_step = env.reset(key)
            return state, seen(time_step)

        def step(key, state, action):
            state, time_step = env.step(state, action)
            goal = (state.agent_position.row == state.target_position.row) & (
                state.agent_position.col == state.target_position.col
            )
            stuck = ~state.action_mask.any()
            over = time_step.last() & (goal | stuck)
            return state, seen(time_step), time_step.reward, over, time_step.last() & ~over

        return reset, step
    if package == "navix":
        import navix

        env = navix.make(name, **kwargs)

        def step(key, state, action):
            state = env.step(state, action)
            return state, state.observation, state.reward, state.step_type == 2, state.step_type == 1

        return lambda key: (env.reset(key), env.reset(key).observation), step
    if package == "xminigrid":
        import xminigrid

        env, params = xminigrid.make(name, **kwargs)

        def step(key, state, action):
            state = env.step(params, state, action)
            last = state.step_type == 2
            return state, state.observation, state.reward, last & (state.reward > 0), last & (state.reward == 0)

        return lambda key: (env.reset(params, key), env.reset(params, key).observation), step
    if package == "brax":
        from brax import envs

        kwargs = {key: value for key, value in kwargs.items() if key != "episode_length"}
        env = envs.get_environment(name, **kwargs)
    else:
        from mujoco_playground import registry

        env = registry.load(name, config_overrides={"impl": "jax"})

    def step(key, state, action):
        state = env.step(state, action)
        return state, state.obs, state.reward, state.done == 1, jax.numpy.bool_(False)

    return lambda key: (env.reset(key), env.reset(key).obs), step


def flat(nest):
    found = []
    for leaf in nest.values() if isinstance(nest, dict | Batch) else [nest]:
        found += flat(leaf) if isinstance(leaf, dict | Batch) else [np.asarray(leaf)]
    return found


needs_jax = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # packages warn when they are imported and traced


def in_package(*names):
    return pytest.mark.parametrize("package", [pytest.param(name, marks=needs_jax) for name in names])


@in_package(*TASKS)
def test_the_stream_is_that_of_the_package_with_the_same_keys(package):
    """Over ends of episodes; a lane's key is its episode's seed in two words, and step t gets `fold_in(key, t)`."""
    needs(package)
    import jax

    reset, step = own(package)
    resets, steps, folded = (jax.jit(jax.vmap(made)) for made in (reset, step, jax.random.fold_in))
    env, generator = batch(package), np.random.default_rng(0)
    numbers, ages, cuts = np.zeros(len(SEEDS), int), np.zeros(len(SEEDS), np.int32), 0

    def keys():
        seeds = [episode_seed(seed, int(number)) for seed, number in zip(SEEDS, numbers, strict=True)]
        return jax.random.wrap_key_data(np.array([[seed >> 32, seed & 0xFFFFFFFF] for seed in seeds], np.uint32))

    shown = env.reset()
    state, expected = resets(keys())
    for _ in range(2 * LIMIT + 2):
        for ours, theirs in zip(flat(shown.observation), flat(expected), strict=True):
            if (
                package == "craftax" and ours.dtype.kind == "f"
            ):  # another program rounds the last bit of daylight otherwise
                np.testing.assert_array_max_ulp(ours, theirs, 1)
            else:
                np.testing.assert_array_equal(ours, theirs)
        over = shown.step_type.numpy() == 2
        action = chosen(env, shown, generator)
        shown = env.step(action)
        ages += 1
        given = action.numpy().astype(np.int32) if hasattr(env.action_spec, "num") else action.numpy()
        after, seen, reward, terminated, truncated = steps(folded(keys(), ages), state, given)
        numbers, ages = numbers + over, np.where(over, 0, ages)
        fresh, first = resets(keys())

        def either(new, old, over=over):
            return jax.numpy.where(over.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        state, expected = jax.tree.map(either, fresh, after), jax.tree.map(either, first, seen)
        terminated, truncated = np.asarray(terminated) & ~over, np.asarray(truncated) & ~over
        if package in ("brax", "playground", "pgx"):  # whose limit is counted outside
            truncated = truncated | (ages == LIMIT)
        np.testing.assert_array_equal(shown.reward, np.where(over, 0, reward))
        np.testing.assert_array_equal(shown.step_type, np.where(over, 0, 1 + (terminated | truncated)))
        np.testing.assert_array_equal(shown.discount, 1 - terminated)
        cuts += int((truncated & ~terminated).sum())
    assert cuts >= len(SEEDS), "the limit was not reached"


@in_package(*TASKS)
def test_an_interrupted_stream_goes_on_exactly(package, tmp_path):
    """Through a file without pickle; and what was returned is memory of its own."""
    needs(package)
    one, two = batch(package), batch(package, seeds=(8, 9, 10))
    time_step, generator = one.reset(), np.random.default_rng(1)
    for _ in range(LIMIT // 2):
        time_step = one.step(chosen(one, time_step, generator))
    palaestra.core.save_tensors(tmp_path / "state", one.state_dict())
    two.load_state_dict(palaestra.core.load_tensors(tmp_path / "state"))
    for _ in range(LIMIT):
        action = chosen(one, time_step, generator)
        for leaf in flat(time_step.observation):
            leaf[...] = 1  # which must not reach what JAX promised not to change
        time_step, other = one.step(action), two.step(action)
        assert torch.equal(time_step.reward, other.reward)
        assert torch.equal(time_step.step_type, other.step_type)
        for ours, theirs in zip(flat(time_step.observation), flat(other.observation), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@in_package("gymnax", "pgx")
def test_a_lane_does_not_depend_on_the_others(package):
    needs(package)
    alone, generator = batch(package, seeds=SEEDS[1:2]), np.random.default_rng(2)
    both = batch(package)
    ours, theirs = alone.reset(), both.reset()
    for _ in range(3 * LIMIT):
        for one, many in zip(flat(ours.observation), flat(theirs.observation), strict=True):
            np.testing.assert_array_equal(one, many[1:2])
        action = chosen(both, theirs, generator)
        ours, theirs = alone.step(action[1:2]), both.step(action)


@in_package("gymnax")
def test_a_gymnax_task_keeps_the_contract_of_batches(package):
    needs(package)

    class Contract(BatchContract):
        def batch(self, seeds=(1, 2)):
            return JaxBatch("gymnax:CartPole-v1", len(seeds), lane_seeds=seeds)

    for name in dir(Contract):
        if name.startswith("test_"):
            getattr(Contract(), name)()


@in_package("gymnax", "brax", "jumanji", "pgx", "navix", "xminigrid")
def test_an_end_of_the_task_is_no_limit(package):
    """A pole falls, a tour is complete, a game is won, a goal is reached: discount 0, and a reward that fits."""
    needs(package)
    ending = {"gymnax": "CartPole-v1", "jumanji": "TSP-v1"}.get(package)
    name = f"{package}:{ending}" if ending else TASKS[package][0]
    env = JaxBatch(name, 8, lane_seeds=range(8), **({"backend": "generalized"} if package == "brax" else {}))
    time_step, generator, ended = env.reset(), np.random.default_rng(3), 0
    for _ in range(150):
        action = torch.ones(8, 1) if package == "brax" else chosen(env, time_step, generator)
        time_step = env.step(action)
        over = (time_step.step_type == 2) & (time_step.discount == 0)
        ended += int(over.sum())
        if package in ("navix", "xminigrid"):
            assert torch.equal(over, time_step.reward > 0)
    assert ended >= 1


@in_package("pgx")
def test_a_game_of_pgx_is_that_of_our_own_board(package):
    """Connect Four: the same moves give the same stones, masks, rewards and ends; who begins is not seen."""
    needs(package)
    theirs, ours = JaxBatch("pgx:connect_four", 16, lane_seeds=range(16)), ConnectFour(16, lane_seeds=range(16))
    generator, ends = np.random.default_rng(4), 0
    theirs_shown, ours_shown = theirs.reset(), ours.reset()
    for _ in range(120):
        running = ours_shown.step_type != 2  # at the end PGX allows everything, and shows the board all the same
        stones = theirs_shown.observation.observation.permute(0, 3, 1, 2).flip(2).float()  # whose row 0 is the top
        assert torch.equal(stones, ours_shown.observation.observation)
        masks = theirs_shown.observation.action_mask.bool(), ours_shown.observation.action_mask
        assert torch.equal(masks[0][running], masks[1][running])
        assert masks[0][~running].all()
        action = chosen(theirs, theirs_shown, generator)
        theirs_shown, ours_shown = theirs.step(action), ours.step(action)
        for field in ("step_type", "reward", "discount"):
            assert torch.equal(getattr(theirs_shown, field), getattr(ours_shown, field)), field
        ends += int((ours_shown.step_type == 2).sum())
    assert ends > 16


@in_package("pgx")
def test_a_random_opponent_leaves_one_player(package):
    """Both sides begin in some games, and both win some; a reward is that of the player who is left."""
    needs(package)
    env = JaxBatch("pgx:tic_tac_toe", 32, lane_seeds=range(32), opponent="random")
    time_step, generator, rewards, stones = env.reset(), np.random.default_rng(5), [], []
    for _ in range(40):
        first = time_step.step_type == 0
        stones += time_step.observation.observation[first].sum((1, 2, 3)).tolist()
        time_step = env.step(chosen(env, time_step, generator))
        rewards += time_step.reward[time_step.step_type == 2].tolist()
    assert set(stones) == {0, 1}
    assert set(rewards) == {-1.0, 0.0, 1.0}
    assert 0.3 < np.mean(np.array(rewards) > 0) < 0.6


@in_package(*TASKS)
def test_ppo_trains_and_resumes_exactly(package, tmp_path):
    """A run that was stopped and resumed has the weights of one that was not."""
    needs(package)
    name, kwargs = TASKS[package]

    class Stops(Callback):
        def iteration_ended(self, trainer, updates):
            if trainer.collector.env_steps >= 64:
                trainer.stop("to be resumed")

    settings = {"env__num_envs": len(SEEDS), "env__kwargs": kwargs, "algorithm__unroll_length": 8}
    settings |= {
        "trainer__total_env_steps": 150,
        "trainer__eval_episodes": 0,
        "algorithm__network__hidden_sizes": (16,),
    }
    settings |= {"env__max_episode_steps": LIMIT} if package == "pgx" else {}
    whole = palaestra.train("ppo", f"jax:{name}", run__directory=str(tmp_path / "whole"), **settings)
    parts = palaestra.train(
        "ppo", f"jax:{name}", run__directory=str(tmp_path / "parts"), callbacks=(Stops(),), **settings
    )
    assert parts.result.env_steps < 150 <= whole.result.env_steps
    parts = palaestra.resume(parts.directory)
    for key, weights in whole.policy.state_dict().items():
        assert torch.equal(weights, parts.policy.state_dict()[key]), key
