"""End-to-end acceptance scenario 5 of the requirements: DQN with prioritised replay, from collecting to priorities."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from palaestra.core import Batch, TimeStep
from palaestra.policies import Phase
from tests.algorithms.parts import collected


@pytest.fixture
def learner():
    """Two gradient steps of 10 rows in each update; epsilon 1, so that whatever explores shows it."""
    return collected("dqn", "discrete", prioritized=True, priority_beta=0.5, epsilon=1.0, double=False, n_step=2)


def spied(monkeypatch: pytest.MonkeyPatch, algorithm: Any, buffer: Any) -> list[tuple[str, Any, tuple[bool, bool]]]:
    """What was called in an update, with what, and the policy's flags (training, updating) then."""
    calls: list[tuple[str, Any, tuple[bool, bool]]] = []

    def spy(owner: Any, method: str) -> None:
        original = getattr(owner, method)

        def called(*args: Any, **kwargs: Any) -> Any:
            calls.append((method, args, (algorithm.policy.training, algorithm.policy.updating)))
            return None if original is None else original(*args, **kwargs)

        monkeypatch.setattr(owner, method, called)

    for owner, method in (
        *((buffer, "draw"), (algorithm, "preprocess"), (algorithm, "losses"), (algorithm, "after_step")),
        (buffer, "write_back"),
    ):
        spy(owner, method)
    return calls


def test_an_update_samples_processes_learns_and_writes_back(learner, monkeypatch):
    """Scenario 5, TS-13, TS-14, TS-15: in this order, with the same indices throughout."""
    algorithm, collector = learner
    calls = spied(monkeypatch, algorithm, collector.buffer)
    algorithm.update(collector.buffer)
    names = [name for name, _, _ in calls]
    assert names == ["draw", "preprocess", *["losses", "after_step", "write_back"] * 2]
    drawn = calls[1][1][0]
    learned = [args[0].index for name, args, _ in calls if name == "losses"]
    written = [args[0] for name, args, _ in calls if name == "write_back"]
    assert torch.equal(torch.cat(learned), drawn.index)
    assert torch.equal(torch.cat(written), drawn.index)


def test_the_flags_say_what_the_policy_is_doing(learner, monkeypatch):
    """Scenario 5, TS-16: collecting True, False; inside an update True, True; evaluating False, False."""
    algorithm, collector = learner
    calls = spied(monkeypatch, algorithm, collector.buffer)
    policy = algorithm.policy
    algorithm.update(collector.buffer)
    assert {flags for _, _, flags in calls} == {(True, True)}
    assert (policy.training, policy.updating) == (True, False)
    with policy.in_phase(Phase.EVAL):
        assert (policy.training, policy.updating) == (False, False)


def test_no_epsilon_in_an_update_and_the_flag_is_taken_back_after_an_exception(learner, monkeypatch):
    """Scenario 5, TS-17: with epsilon 1 collecting is uniform, what an update asks for is greedy, Q untouched."""
    algorithm, collector = learner
    policy = algorithm.policy
    step = TimeStep(observation=torch.rand(300, *collector.env.observation_spec.shape))
    greedy = policy.greedy(step.observation)
    counts = np.bincount(policy.act(step).action.numpy(), minlength=3)
    assert (np.abs(counts / 300 - 1 / 3) < 0.12).all()
    asked = []

    def losses(batch: Batch) -> Any:
        asked.append(policy.act(step).action)
        raise RuntimeError("on purpose")

    monkeypatch.setattr(algorithm, "losses", losses)
    with pytest.raises(RuntimeError, match="on purpose"):
        algorithm.update(collector.buffer)
    assert torch.equal(asked[0], greedy)
    assert not policy.updating
    assert not torch.equal(policy.act(step).action, greedy)


def test_the_loss_is_weighted_and_the_priority_is_the_error_of_an_n_step_target(learner, monkeypatch):
    """TS-11, TS-14, TS-21: y = r1 + gamma r2 + gamma² max Q, the mean of weight times huber, |Q - y| written back."""
    algorithm, collector = learner
    buffer, gamma = collector.buffer, algorithm.config.gamma
    written: list[tuple[torch.Tensor, torch.Tensor]] = []
    monkeypatch.setattr(buffer, "write_back", lambda index, priority: written.append((index, priority)))
    drawn = buffer.draw(algorithm.plan, torch.Generator().manual_seed(3))
    monkeypatch.setattr(buffer, "draw", lambda plan, generator: drawn)
    with torch.no_grad():
        q = algorithm.policy.q_values(drawn.observation[:10]).gather(-1, drawn.action[:10, None])[:, 0]
        best = algorithm.target_network(drawn.next_observation[:10]).amax(-1)
    target = []
    for i in range(10):
        value, discount = 0.0, 1.0
        for step in (1, 2):
            value += discount * float(drawn.reward[step, i])
            discount *= gamma * float(drawn.discount[step, i])
            if drawn.step_type[step, i] == 2:  # LAST: the window ends with its episode
                break
        target.append(value + discount * float(best[i]))
    error = q - torch.tensor(target)
    size = error.abs()
    huber = torch.where(size <= 1, 0.5 * size**2, size - 0.5)
    info = algorithm.update(buffer)
    assert_close(info.records[0]["q"], (drawn.weight[:10] * huber).mean())
    assert_close(written[0][1], size)
    assert len(set(drawn.weight.tolist())) == 1  # nothing has been learned yet, so all priorities are equal


def test_rows_of_large_error_are_drawn_again(learner):
    """TS-11, TS-15: what was written back decides what is drawn next, and weights correct for it."""
    algorithm, collector = learner
    buffer = collector.buffer
    drawn = buffer.draw(algorithm.plan, torch.Generator().manual_seed(3))
    favourite = drawn.index[0]
    priority = torch.where(drawn.index == favourite, 300.0, 1.0)
    buffer.write_back(drawn.index, priority)
    again = [buffer.draw(algorithm.plan, torch.Generator().manual_seed(seed)) for seed in range(10)]
    index, weight = (torch.cat([batch[name] for batch in again]) for name in ("index", "weight"))
    assert (index == favourite).float().mean() > 0.3  # uniformly, it would be one in thirty
    assert (weight[index == favourite] <= weight[index != favourite].min()).all()
