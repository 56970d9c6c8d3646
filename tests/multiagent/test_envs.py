"""`MultiAgentEnv` and `MultiAgentEnvs`: what an environment may emit, and what happens when it does not."""

import numpy as np
import pytest

from palaestra.core import DiscreteSpec, EnvError, SpecError, StepType, TensorSpec, restart, termination, transition
from palaestra.core import truncation as truncated
from palaestra.envs import FaultPolicy
from palaestra.multiagent import AgentSpec, Meeting, MultiAgentEnv, MultiAgentEnvs, MultiAgentStep, assign_policies
from tests.multiagent.parts import RandomWorld, Shop

SEEN = np.zeros(1, np.float32)


class Told(MultiAgentEnv):
    """Emits the steps that it is told to.

    Args:
        outcomes: the first begins the episode.
        delayed: whether rewards come late.
    """

    def __init__(self, *outcomes: MultiAgentStep, delayed: bool = False) -> None:
        self.outcomes, self.delayed = list(outcomes), delayed

    @property
    def agents(self):
        return {name: AgentSpec(TensorSpec((1,)), DiscreteSpec(num=2)) for name in "ab"}

    def begin_episode(self, seed):
        self.left = iter(self.outcomes)
        return next(self.left)

    def advance(self, actions):
        return next(self.left)


FIRST, MID, DEAD, CUT = restart(SEEN), transition(SEEN, 1.0), termination(SEEN, 1.0), truncated(SEEN, 1.0)
BEGIN = MultiAgentStep({"a": FIRST, "b": FIRST})

MISTAKES = {
    "an agent that nobody knows": ([MultiAgentStep({"c": FIRST})], "'c' is none of the environment's agents"),
    "MID before FIRST": ([MultiAgentStep({"a": MID})], "'a' got MID, but its episode has not begun"),
    "FIRST twice": ([BEGIN, MultiAgentStep({"a": FIRST})], "'a' got FIRST, but its episode has begun"),
    "an end without LAST": ([BEGIN, MultiAgentStep({"a": DEAD}, True)], r"agents \['b'\] got no LAST"),
    "a reward before any action": ([MultiAgentStep({"a": FIRST._replace(reward=1.0)})], "reward 1.0 with FIRST"),
    "a discount of gamma": ([BEGIN, MultiAgentStep({"a": MID._replace(discount=0.9)})], "discount is 0 only with LAST"),
    "another shape": (
        [MultiAgentStep({"a": restart(np.zeros(2, np.float32))})],
        r"'a' has shape \(2,\), expected \(1,\)",
    ),
    "late rewards unannounced": (
        [BEGIN, MultiAgentStep({"a": MID}, False, {"a": [1.0]})],
        "an environment that is not `delayed`",
    ),
}
LATE = {
    "a reward at once": ([BEGIN, MultiAgentStep({"a": MID})], "rewards come late"),
    "a reward too many": ([BEGIN, MultiAgentStep({}, False, {"a": [1.0, 2.0]})], "2 late rewards for 1 actions"),
    "a reward too few": (
        [BEGIN, MultiAgentStep({name: CUT._replace(reward=0.0) for name in "ab"}, True, {"a": [1.0]})],
        r"no reward yet, by agent: \{'b': 1\}",
    ),
}


def run(env):
    envs = MultiAgentEnvs([lambda: env], lane_seeds=[5])
    (outcome,) = envs.reset()
    for _ in range(3):
        due = [name for name, step in outcome.time_steps.items() if step.step_type != StepType.LAST]
        (outcome,) = envs.step([dict.fromkeys(due, 1)])


@pytest.mark.parametrize("mistake", [*MISTAKES, *LATE])
def test_a_environment_that_breaks_a_rule_is_told_which(mistake):
    """DESIGN.md's table of episode ends, for each agent."""
    outcomes, message = {**MISTAKES, **LATE}[mistake]
    with pytest.raises(EnvError, match=rf"environment 0 in episode 0 \(seed \d+\), step \d.*{message}"):
        run(Told(*outcomes, delayed=mistake in LATE))


def test_agents_end_each_by_itself_and_may_come_back():
    """ALF-23..26 for each agent: one dies, one is cut off, one begins anew in the same episode of the environment."""
    envs = MultiAgentEnvs(
        [
            lambda: Told(
                BEGIN,
                MultiAgentStep({"a": DEAD, "b": MID}),
                MultiAgentStep({"a": FIRST, "b": MID}),
                MultiAgentStep({"a": CUT, "b": DEAD}, True),
            )
        ],
        lane_seeds=[1],
    )
    envs.reset()
    assert envs.step([{"a": 0, "b": 1}])[0].time_steps["a"].terminated
    envs.step([{"b": 1}])
    (last,) = envs.step([{"a": 0, "b": 1}])
    assert last.over
    assert last.time_steps["a"].truncated
    (begun,) = envs.step([{}])
    assert all(step.first for step in begun.time_steps.values())


def test_actions_of_others_than_those_who_act_are_refused():
    envs = MultiAgentEnvs([Meeting], lane_seeds=[1])
    envs.reset()
    with pytest.raises(
        SpecError, match=r"given for \['agent_0'\]; those to act are \['agent_0', 'agent_1', 'agent_2'\]"
    ):
        envs.step([{"agent_0": 1}])


def test_a_environment_that_raises_is_named_with_its_seed_step_and_actions():
    """F1: the error has all that is needed to see it again."""

    class Fails(Meeting):
        def advance(self, actions):
            raise KeyError("nobody")

    envs = MultiAgentEnvs([Meeting, Fails], lane_seeds=[1, 2])
    with pytest.raises(EnvError, match="other agents"):
        MultiAgentEnvs([Meeting, Shop], lane_seeds=[1, 2])
    envs.reset()
    with pytest.raises(
        EnvError, match=r"environment 1 in episode 0 \(seed \d+\), step 1, with actions .*raised KeyError"
    ) as caught:
        envs.step([dict.fromkeys(envs.agents, 1)] * 2)
    assert "Traceback" in str(caught.value)
    assert [fault.env_id for fault in envs.faults] == [1]


@pytest.mark.parametrize("make", [Meeting, Shop, RandomWorld])
def test_equal_seeds_give_equal_streams_and_a_saved_environment_goes_on_with_its_own(make):
    """F25: replayed by its actions."""

    def play(envs, outcome, rng, outcomes):
        told = []
        for _ in range(outcomes):
            due = {name: s.observation for name, s in outcome.time_steps.items() if s.step_type != StepType.LAST}
            masks = {name: seen["action_mask"] if isinstance(seen, dict) else [1, 1] for name, seen in due.items()}
            (outcome,) = envs.step([{name: int(rng.choice(np.flatnonzero(mask))) for name, mask in masks.items()}])
            told.append(
                {
                    name: (int(s.step_type), float(s.reward), str(s.observation))
                    for name, s in outcome.time_steps.items()
                }
            )
        return told, outcome

    one, other = (MultiAgentEnvs([make], lane_seeds=[3]) for _ in range(2))
    first, second = np.random.default_rng(1), np.random.default_rng(1)
    told, outcome = play(one, one.reset()[0], first, 30)
    assert play(other, other.reset()[0], second, 30)[0] == told
    saved = one.state_dict()
    rest, _ = play(one, outcome, np.random.default_rng(2), 30)
    fresh = MultiAgentEnvs([make], lane_seeds=[99])
    fresh.load_state_dict(saved)
    assert play(fresh, outcome, np.random.default_rng(2), 30)[0] == rest


def test_the_best_return_of_a_meeting_is_what_walking_to_the_middle_earns():
    """The known optimum of the tiny cooperative environment."""
    env = Meeting()
    for seed in range(30):
        env.begin_episode(seed)
        best, earned, over = env.best_return, 0.0, False
        target = (int(env.cells.max()) + int(env.cells.min())) // 2
        while not over:
            moves = {name: int(np.sign(target - env.cells[i])) + 1 for i, name in enumerate(env.agents)}
            outcome = env.advance(moves)
            earned, over = earned + float(outcome.time_steps["agent_0"].reward), outcome.over
        assert earned == pytest.approx(best)
    assert env.render().shape == (96, 160, 3)


def test_an_agent_is_named_before_its_name_is_read_as_a_pattern():
    spec = next(iter(Meeting().agents.values()))
    specs = assign_policies({"agent[0]": spec, "agent0": spec}, {"agent[0]": "first", "*": "other"})
    assert {name: one.agents for name, one in specs.items()} == {"first": ("agent[0]",), "other": ("agent0",)}


@pytest.mark.parametrize(
    ("action", "wrong"),
    [(7.9, "7.9"), (-3, "value -3, expected an integer"), (float("nan"), "nan"), (0, "mask forbids")],
)
def test_an_action_outside_its_space_or_forbidden_is_refused(action, wrong):
    """A rule of the user's may say anything; as for one agent, nothing is executed that is no action."""
    made = FaultPolicy(on_fault="restart")  # which is for faults of environments
    envs = MultiAgentEnvs([lambda: Meeting(num_agents=2, num_cells=2)], lane_seeds=[3], faults=made)
    (begun,) = envs.reset()
    mask = begun.time_steps["agent_0"].observation["action_mask"]
    assert mask.sum() == 2
    forbidden = int(np.flatnonzero(mask == 0)[0])
    with pytest.raises(SpecError, match=wrong):
        envs.step([{"agent_0": forbidden if action == 0 else action, "agent_1": 1}])
