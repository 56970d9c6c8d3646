"""Mirror images of rows in PPO: as rows, as a cost, and what is refused."""

import pytest
import torch

import palaestra
from palaestra import PPO, Batch, NetworkConfig, PPOConfig, RunSeeds
from palaestra.core import ConfigError, DiscreteSpec, TensorSpec
from tests.faults.parts import differences

HERE = __name__
SEEN, BOX = TensorSpec((3,)), TensorSpec((1,))
SMALL = NetworkConfig(hidden_sizes=(8,))


def pendulum(observation, action):
    """cos and sin of the angle, and how fast it turns."""
    return observation * observation.new_tensor([1.0, -1.0, -1.0]), -action


def choices(observation, action):
    return {"x": -observation["x"], "action_mask": observation["action_mask"].flip(-1)}, 2 - action


def turns(observation, action):
    return observation[:, [1, 2, 0]], action


def shortens(observation, action):
    return observation[:, :2], action


def fails(observation):
    return observation


def learner(name="pendulum", spec=BOX, seen=SEEN, **settings):
    symmetry = name and f"{HERE}:{name}"
    made = PPO(seen, spec, PPOConfig(network=SMALL, symmetry=symmetry, **settings), RunSeeds(0))
    generator = torch.Generator().manual_seed(1)
    for parameter in made.model.parameters():  # a new policy hardly acts, and so alike on both sides
        parameter.data.normal_(generator=generator)
    return made


def minibatch(count=5):
    generator = torch.Generator().manual_seed(2)
    numbers = ("log_prob", "advantage", "value_target", "value")
    fields = {name: torch.randn(count, generator=generator) for name in numbers}
    rows = {
        "observation": torch.randn(count, 3, generator=generator),
        "action": torch.randn(count, 1, generator=generator),
    }
    return Batch.of(rows | fields | {"valid": torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])})


def test_images_are_rows_with_the_numbers_of_the_rows():
    """As if twice as many had been collected; but how far the policy has moved is seen at what was acted on."""
    batch, with_images, plain = minibatch(), learner(entropy_cost=0.1), learner(None, entropy_cost=0.1)
    assert differences(with_images.state_tensors(), plain.state_tensors()) == []
    both = batch.map(lambda leaf: torch.cat([leaf, leaf]))
    observation, action = pendulum(batch["observation"], batch["action"])
    both = both.replace(
        observation=torch.cat([batch["observation"], observation]), action=torch.cat([batch["action"], action])
    )
    mine, theirs = with_images.losses(batch), plain.losses(both)
    torch.testing.assert_close(mine.terms["ppo"], theirs.terms["ppo"])
    torch.testing.assert_close(mine.metrics["kl"], plain.losses(batch).metrics["kl"])
    assert float(theirs.metrics["kl"]) != pytest.approx(float(mine.metrics["kl"]))


@pytest.mark.parametrize("rows", [True, False])
def test_the_cost_is_how_far_the_mean_action_of_an_image_is_from_the_image_of_the_mean_action(rows):
    batch, costly = minibatch(), learner(symmetry_cost=0.5, symmetric_rows=rows)
    found = costly.losses(batch)
    without = (learner() if rows else learner(None)).losses(batch)
    total, count = 0.0, 0
    for row in range(5):
        if batch["valid"][row]:
            seen = batch["observation"][row : row + 1]
            mean, image = (costly.policy.distribution(x).mode().item() for x in (seen, pendulum(seen, seen)[0]))
            total, count = total + (image + mean) ** 2, count + 1
    assert float(found.metrics["symmetry_error"].detach()) == pytest.approx(total / count, rel=1e-4)
    difference = float((found.terms["ppo"] - without.terms["ppo"]).detach())
    assert difference == pytest.approx(0.5 * total / count, rel=1e-3)


def test_images_follow_the_rows_and_rows_are_not_drawn_to_their_images():
    """(0.1 + 0.3)^2 where the mean should be -0.3: its slope is 2 * 0.4 at the image, and 0 at the row."""
    mean = torch.tensor([[0.3], [0.1]], requires_grad=True)
    error = learner(symmetry_cost=0.5).symmetry.error(torch.ones(2, 3), mean)
    assert error.tolist() == pytest.approx([0.16])
    (slope,) = torch.autograd.grad(error.sum(), mean)
    assert slope.flatten().tolist() == pytest.approx([0.0, 0.8])


def test_choices_and_masks_have_images():
    seen = {"x": TensorSpec((2,)), "action_mask": TensorSpec((3,), torch.bool)}
    algorithm = learner("choices", DiscreteSpec(num=3), seen)
    mask = torch.tensor([[True, True, False]] * 5)
    rows = Batch.of({"x": torch.ones(5, 2), "action_mask": mask})
    batch = minibatch().replace(observation=rows, action=torch.tensor([0, 1, 0, 1, 0]))
    both = algorithm.symmetry.doubled(batch)
    assert both.action.tolist() == [0, 1, 0, 1, 0, 2, 1, 2, 1, 2]
    assert both.observation["action_mask"][5:].tolist() == [[False, True, True]] * 5
    assert torch.isfinite(algorithm.losses(batch).terms["ppo"])


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"name": None, "symmetry_cost": 0.1}, "there is no symmetry; name one"),
        ({"name": None, "symmetric_rows": False}, "there is no symmetry; name one"),
        ({"symmetric_rows": False}, "it would do nothing"),
        ({"spec": DiscreteSpec(num=2), "symmetry_cost": 0.1}, "this action space has choices"),
        ({"name": "turns"}, "of a mirror image is another row, in observations"),
        ({"name": "shortens"}, r"of observations has .*\(2, 2\).*\(2, 3\).* needed"),
        ({"name": "fails"}, "failed with observations and actions of this environment: TypeError"),
        ({"name": "nobody"}, "has no 'nobody'"),
    ],
)
def test_what_is_no_mirror_is_refused_before_anything_begins(settings, told):
    with pytest.raises(ConfigError, match=told):
        learner(**settings)


def test_a_memory_has_no_image():
    network = NetworkConfig(hidden_sizes=(8,), recurrent="gru")
    with pytest.raises(ConfigError, match="and not of a memory"):
        PPO(SEEN, BOX, PPOConfig(network=network, symmetry=f"{HERE}:pendulum"))


def test_a_run_with_a_symmetry_acts_more_alike_on_both_sides(tmp_path):
    found = {}
    for name, settings in (("plain", {}), ("both", {"algorithm__symmetry_cost": 20.0})):
        settings |= {"algorithm__symmetry": f"{HERE}:pendulum"} if settings else {}
        sizes = {"algorithm__unroll_length": 64, "env__num_envs": 4, "trainer__total_env_steps": 512}
        place = {"run__directory": str(tmp_path), "run__name": name, "trainer__eval_episodes": 0}
        done = palaestra.train(
            "ppo", "Pendulum-v1", algorithm__network__hidden_sizes=(16,), **sizes, **place, **settings
        )
        angle = torch.linspace(-3, 3, 31)
        seen = torch.stack([angle.cos(), angle.sin(), angle], -1)
        mean, image = (done.policy.distribution(rows).mode() for rows in (seen, pendulum(seen, seen)[0]))
        found[name] = float((mean + image).square().mean().detach())
    assert found["both"] < 0.3 * found["plain"]
