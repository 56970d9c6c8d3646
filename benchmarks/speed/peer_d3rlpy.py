"""One run of d3rlpy: `python -m benchmarks.speed.peer_d3rlpy cql WARMUP_S WINDOW_S`.

Its `fit` on rows in memory, without loggers and progress bar. Runs in an environment of its own. Prints one line of
JSON.
"""

import contextlib
import json
import sys
from typing import Any

import numpy as np
import torch
from d3rlpy.algos import CQLConfig, IQLConfig
from d3rlpy.dataset import MDPDataset
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models.encoders import VectorEncoderFactory

from benchmarks.speed.window import Window
from benchmarks.speed.workloads import WORKLOADS, CQLSettings, IQLSettings, OfflineSettings, offline_rows

ENDLESS = 10**9


class WindowOverError(Exception):
    """Ends `fit` between two gradient steps."""


def algorithm(settings: OfflineSettings) -> Any:
    encoder = VectorEncoderFactory(hidden_units=list(settings.hidden_sizes), activation=settings.activation)
    rate = settings.learning_rate
    shared: dict[str, Any] = {
        "actor_learning_rate": rate,
        "critic_learning_rate": rate,
        "batch_size": settings.minibatch_size,
        "gamma": settings.gamma,
        "tau": settings.tau,
        "actor_encoder_factory": encoder,
        "critic_encoder_factory": encoder,
    }
    if isinstance(settings, CQLSettings):
        config: Any = CQLConfig(
            **shared,
            temp_learning_rate=rate,
            alpha_learning_rate=0.0,
            initial_alpha=1.0,
            conservative_weight=settings.conservative_cost,
            n_action_samples=settings.num_actions,
            n_critics=2,
        )
    else:
        assert isinstance(settings, IQLSettings)
        config = IQLConfig(
            **shared,
            value_encoder_factory=encoder,
            expectile=settings.expectile,
            weight_temp=settings.inverse_temperature,
            n_critics=2,
        )
    return config.create(device="cpu:0")


def dataset() -> MDPDataset:
    """Rows of one episode after another."""
    observation, action, reward = (np.swapaxes(array, 0, 1) for array in offline_rows())
    last = np.zeros(reward.shape, np.float32)
    last[:, -1] = 1
    return MDPDataset(
        observation.reshape(-1, observation.shape[-1]),
        action.reshape(-1, action.shape[-1]),
        reward.reshape(-1, 1),
        terminals=np.zeros(last.size, np.float32),
        timeouts=last.reshape(-1),
    )


def measure(name: str, *, warmup_s: float, window_s: float) -> dict[str, float]:
    settings = WORKLOADS[name].settings
    assert isinstance(settings, OfflineSettings)
    counters = {"env_steps": 0, "updates": 0, "iterations": 0}
    window, learner = Window(lambda: counters, warmup_s, window_s), algorithm(settings)

    def after_step(algo: Any, epoch: int, total_step: int) -> None:
        steps = max(int(state["step"]) for state in optimizers[0].state.values())
        counters.update(env_steps=total_step, updates=steps, iterations=total_step)
        if window.tick():
            raise WindowOverError

    rows = dataset()
    learner.build_with_dataset(rows)
    optimizers = [learner.impl.modules.critic_optim.optim]
    with contextlib.suppress(WindowOverError):
        learner.fit(
            rows,
            n_steps=ENDLESS,
            n_steps_per_epoch=ENDLESS,
            logger_adapter=NoopAdapterFactory(),
            show_progress=False,
            callback=after_step,
        )
    return {**window.result, "threads": torch.get_num_threads()}


if __name__ == "__main__":
    name, warmup_s, window_s = sys.argv[1:]
    print(json.dumps(measure(name, warmup_s=float(warmup_s), window_s=float(window_s))))
