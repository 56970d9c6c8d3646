"""MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from palaestra.training.loggers.network import NetworkLogger
from palaestra.training.summaries import Histogram

__all__ = ["MLflowLogger"]


class MLflowLogger(NetworkLogger):
    """Sends metrics to an MLflow server, or into a local database; a resumed run goes on there as well.

    MLflow allows no `@` in names: `info/x@max` becomes `info/x.max`.

    Args:
        experiment: at the server.
        directory: of the run; its name is the run's name.
        config: settings to show beside the run.
        tracking_uri: of the server; by default what MLflow itself takes from its environment.

    Raises:
        MissingExtraError: mlflow is not installed.
    """

    def __init__(
        self,
        experiment: str,
        directory: str | Path,
        *,
        config: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        super().__init__("mlflow", "mlflow")
        self._experiment, self._name, self._config = experiment, Path(directory).absolute().name, dict(config or {})
        self._tracking_uri = tracking_uri
        self._client: Any = None
        self._run_id = ""

    def open(self, position: Mapping[str, int]) -> None:
        """See `NetworkLogger.open`."""
        self._client = client = self.package.MlflowClient(tracking_uri=self._tracking_uri)
        found = client.get_experiment_by_name(self._experiment)
        experiment = client.create_experiment(self._experiment) if found is None else found.experiment_id
        same = f"attributes.run_name = '{self._name}'"
        runs = client.search_runs([experiment], filter_string=same) if position["env_steps"] else []
        if runs:
            self._run_id = runs[0].info.run_id
            return
        self._run_id = client.create_run(experiment, run_name=self._name).info.run_id
        for name, value in self._config.items():
            client.log_param(self._run_id, name, value)

    def send(self, row: Mapping[str, Any], env_steps: int) -> None:
        """See `NetworkLogger.send`."""
        for name, value in row.items():
            if not isinstance(value, Histogram):
                self._client.log_metric(self._run_id, name.replace("@", "."), float(value), step=env_steps)

    def end(self) -> None:
        """See `NetworkLogger.end`."""
        if self._run_id:
            self._client.set_terminated(self._run_id)
