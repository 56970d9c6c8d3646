"""`World` and `Worlds`: what a world may emit, and what happens when it does not."""

import numpy as np
import pytest

from palaestra.core import DiscreteSpec, EnvError, SpecError, StepType, TensorSpec, restart, termination, transition
from palaestra.core import truncation as truncated
from palaestra.multiagent import AgentSpec, Meeting, Moment, World, Worlds
from tests.multiagent.parts import RandomWorld, Shop

SEEN = np.zeros(1, np.float32)


class Told(World):
    """Emits the moments that it is told to.

    Args:
        moments: the first begins the episode.
        delayed: whether rewards come late.
    """

    def __init__(self, *moments: Moment, delayed: bool = False) -> None:
        self.moments, self.delayed = list(moments), delayed

    @property
    def agents(self):
        return {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in "ab"}

    def begin_episode(self, seed):
        self.left = iter(self.moments)
        return next(self.left)

    def advance(self, actions):
        return next(self.left)


FIRST, MID, DEAD, CUT = restart(SEEN), transition(SEEN, 1.0), termination(SEEN, 1.0), truncated(SEEN, 1.0)
BEGIN = Moment({"a": FIRST, "b": FIRST})

MISTAKES = {
    "an agent that nobody knows": ([Moment({"c": FIRST})], "'c' is none of the world's agents"),
    "MID before FIRST": ([Moment({"a": MID})], "'a' got MID, but its episode has not begun"),
    "FIRST twice": ([BEGIN, Moment({"a": FIRST})], "'a' got FIRST, but its episode goes on"),
    "an end without LAST": ([BEGIN, Moment({"a": DEAD}, True)], r"agents \['b'\] got no LAST"),
    "a reward before any action": ([Moment({"a": FIRST._replace(reward=1.0)})], "reward 1.0 with FIRST"),
    "a discount of gamma": ([BEGIN, Moment({"a": MID._replace(discount=0.9)})], "discount is 0 only with LAST"),
    "another shape": ([Moment({"a": restart(np.zeros(2, np.float32))})], r"'a' has shape \(2,\), expected \(1,\)"),
    "late rewards unannounced": ([BEGIN, Moment({"a": MID}, False, {"a": [1.0]})], "a world that is not `delayed`"),
}
LATE = {
    "a reward at once": ([BEGIN, Moment({"a": MID})], "rewards come late"),
    "a reward too many": ([BEGIN, Moment({}, False, {"a": [1.0, 2.0]})], "2 late rewards for 1 actions"),
    "a reward too few": (
        [BEGIN, Moment({name: CUT._replace(reward=0.0) for name in "ab"}, True, {"a": [1.0]})],
        r"no reward yet, by agent: \{'b': 1\}",
    ),
}


def run(world):
    worlds = Worlds([lambda: world], lane_seeds=[5])
    (moment,) = worlds.reset()
    for _ in range(3):
        due = [name for name, step in moment.time_steps.items() if step.step_type != StepType.LAST]
        (moment,) = worlds.step([dict.fromkeys(due, 1)])


@pytest.mark.parametrize("mistake", [*MISTAKES, *LATE])
def test_a_world_that_breaks_a_rule_is_told_which(mistake):
    """DESIGN.md's table of episode ends, for each agent; F22."""
    moments, message = {**MISTAKES, **LATE}[mistake]
    with pytest.raises(SpecError, match=rf"world 0 in episode 0 \(seed \d+\), step \d.*{message}"):
        run(Told(*moments, delayed=mistake in LATE))


def test_agents_end_each_by_itself_and_may_come_back():
    """ALF-23..26 for each agent: one dies, one is cut off, one begins anew in the same episode of the world."""
    worlds = Worlds(
        [
            lambda: Told(
                BEGIN,
                Moment({"a": DEAD, "b": MID}),
                Moment({"a": FIRST, "b": MID}),
                Moment({"a": CUT, "b": DEAD}, True),
            )
        ],
        lane_seeds=[1],
    )
    worlds.reset()
    assert worlds.step([{"a": 0, "b": 1}])[0].time_steps["a"].terminated
    worlds.step([{"b": 1}])
    (last,) = worlds.step([{"a": 0, "b": 1}])
    assert last.over
    assert last.time_steps["a"].truncated
    (begun,) = worlds.step([{}])
    assert all(step.first for step in begun.time_steps.values())


def test_actions_of_others_than_those_who_act_are_refused():
    worlds = Worlds([Meeting], lane_seeds=[1])
    worlds.reset()
    with pytest.raises(
        SpecError, match=r"given for \['agent_0'\]; those to act are \['agent_0', 'agent_1', 'agent_2'\]"
    ):
        worlds.step([{"agent_0": 1}])


def test_a_world_that_raises_is_named_with_its_seed_step_and_actions():
    """F8: the error has all that is needed to see it again."""

    class Fails(Meeting):
        def advance(self, actions):
            raise KeyError("nobody")

    worlds = Worlds([Meeting, Fails], lane_seeds=[1, 2])
    with pytest.raises(EnvError, match="other agents"):
        Worlds([Meeting, Shop], lane_seeds=[1, 2])
    worlds.reset()
    with pytest.raises(
        EnvError, match=r"world 1 in episode 0 \(seed \d+\), step 1, with actions .*raised KeyError"
    ) as caught:
        worlds.step([dict.fromkeys(worlds.agents, 1)] * 2)
    assert "Traceback" in str(caught.value)
    assert [fault.env_id for fault in worlds.faults] == [1]


@pytest.mark.parametrize("make", [Meeting, Shop, RandomWorld])
def test_equal_seeds_give_equal_streams_and_a_saved_world_goes_on_with_its_own(make):
    """F10: replayed by its actions."""

    def play(worlds, moment, rng, moments):
        told = []
        for _ in range(moments):
            due = [name for name, step in moment.time_steps.items() if step.step_type != StepType.LAST]
            (moment,) = worlds.step([{name: int(rng.integers(2)) for name in due}])
            told.append(
                {name: (int(s.step_type), float(s.reward), str(s.observation)) for name, s in moment.time_steps.items()}
            )
        return told, moment

    one, other = (Worlds([make], lane_seeds=[3]) for _ in range(2))
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    told, moment = play(one, one.reset()[0], first, 30)
    assert play(other, other.reset()[0], second, 30)[0] == told
    saved = one.state_dict()
    rest, _ = play(one, moment, np.random.default_rng(2), 30)
    fresh = Worlds([make], lane_seeds=[99])
    fresh.load_state_dict(saved)
    assert play(fresh, moment, np.random.default_rng(2), 30)[0] == rest


def test_the_best_return_of_a_meeting_is_what_walking_to_the_middle_earns():
    """The known optimum of the tiny cooperative world."""
    world = Meeting()
    for seed in range(30):
        world.begin_episode(seed)
        best, earned, over = world.best_return, 0.0, False
        target = (int(world.cells.max()) + int(world.cells.min())) // 2
        while not over:
            moves = {name: int(np.sign(target - world.cells[i])) + 1 for i, name in enumerate(world.agents)}
            moment = world.advance(moves)
            earned, over = earned + float(moment.time_steps["agent_0"].reward), moment.over
        assert earned == pytest.approx(best)
    assert world.render().shape == (96, 160, 3)
