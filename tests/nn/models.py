"""An actor-critic with a shared bottom stack, and what tests ask of it."""

import torch
from torch import nn

from palaestra.nn import CoreModel, OptimizerOption


class MyACModel(CoreModel):
    """The document's actor-critic with a shared bottom stack."""

    def forward(self, states, actor=True, critic=True):
        features = self.component["representation"](states)
        return (
            self.component["actor"](features) if actor else None,
            self.component["critic"](features) if critic else None,
        )


OPTIONS = {
    "representation": OptimizerOption(cls="adam", params={"lr": 0.0001}),
    "actor": OptimizerOption(cls="adam", params={"lr": 0.001}),
    "critic": OptimizerOption(cls="rmsprop", params={"lr": 0.0001}),
}
STATES = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def ac_model(seed=0, options=None):
    """The model of the document, with its three optimizers."""
    torch.manual_seed(seed)
    representation_stack = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    actor_head, critic_head = nn.Linear(8, 2), nn.Linear(8, 1)
    return MyACModel(
        {"representation": representation_stack, "actor": actor_head, "critic": critic_head},
        optim_option=OPTIONS if options is None else options,
    )


def losses(model, states=STATES):
    """An actor and a critic loss."""
    logits, value = model(states)
    return logits.log_softmax(-1)[:, 0].mean(), (value - 1).square().mean()


def parameters(model):
    """Copies of all parameters."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def moved(before, model):
    """Components whose parameters changed."""
    return {name.split(".")[1] for name, value in model.named_parameters() if not torch.equal(before[name], value)}


def storages(model):
    tensors = [*model.state_tensors().values(), *(o.learning_rate for o in model.optimizers.values())]
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def same_state(model, other):
    """Whether parameters and optimizer memory are bit-equal."""
    states = zip(model.state_tensors().values(), other.state_tensors().values(), strict=True)
    return all(torch.equal(left, right) for left, right in states)
