"""The logger that writes to MLflow."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from orca.errors import ArgumentError, MissingPackageError
from orca.loggers.base import Logger
from orca.loggers.values import numbers_of

PARAMETER_LENGTH = 6000
"""The longest parameter value that MLflow accepts."""
BATCH_LENGTH = 100
"""The most parameters or tags that MLflow accepts at once."""


class MLflow(Logger):
    """Logs settings and config as MLflow parameters, and the values of each epoch as metrics.

    An active run of the program is joined and left open. Otherwise a run is started, and ended with the fit; its id
    is `run_id`. MLflow never changes a parameter: in a joined run the first value stays. Arguments left out take
    MLflow's own defaults.

    Args:
        experiment: Name of the experiment, created if missing.
        run_name: Name of a run that is started.
        tracking_uri: The tracking server or store.
        tags: Tags to set on the run.

    Raises:
        ArgumentError: If `tags` is not a dict.
    """

    def __init__(
        self,
        experiment: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | os.PathLike[str] | None = None,
        tags: dict[str, Any] | None = None,
    ) -> None:
        if tags is not None and not isinstance(tags, dict):
            raise ArgumentError(f'tags={tags!r}: expected a dict such as {{"team": "vision"}}, or None.')
        self.experiment = experiment
        self.run_name = run_name
        self.tracking_uri = tracking_uri
        self.tags = tags
        self.run_id: str | None = None
        self._client: Any = None
        self._owns_run = False
        self._restore: tuple[str | None] | None = None
        """The tracking URI to restore, in a tuple because the URI itself may be None."""

    def start(self, about: dict[str, Any]) -> None:
        mlflow = _mlflow()
        # The run of a fit that never ended must not be mistaken for the user's.
        self._end("FAILED")
        active = mlflow.active_run()
        try:
            if active is None:
                self._redirect(mlflow)
            self._client = _client(mlflow, mlflow.get_tracking_uri())
            if active is not None:
                self._check_same(mlflow, active.info)
                self.run_id = active.info.run_id
            else:
                options = {} if self.experiment is None else {"experiment_id": self._experiment_id()}
                self.run_id = mlflow.start_run(run_name=self.run_name, **options).info.run_id
                self._owns_run = True
            self._describe(mlflow.entities, about)
        except BaseException:
            self._end("FAILED")
            raise

    def epoch(self, record: dict[str, Any]) -> None:
        entities = _mlflow().entities
        now = int(time.time() * 1000)
        metrics = [
            entities.Metric(_name(name), value, now, int(record["epoch"]))
            for name, value in numbers_of(record).items()
            if name not in ("epoch", "step")
        ]
        self._client.log_batch(self.run_id, metrics=metrics)

    def end(self, error: BaseException | None) -> None:
        self._end("FINISHED" if error is None else "FAILED")

    def _redirect(self, mlflow: Any) -> None:
        """Send new runs to `tracking_uri` until this one ends."""
        if self.tracking_uri is not None:
            self._restore = (mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None,)
            mlflow.set_tracking_uri(self.tracking_uri)

    def _check_same(self, mlflow: Any, active: Any) -> None:
        """Refuse to join a run that is stored elsewhere than requested."""
        fix = "End that run first with mlflow.end_run(), or leave the argument out to join it."
        if self.tracking_uri is not None:
            # Different URIs can mean the same store, so look the run up instead of comparing them.
            try:
                _client(mlflow, str(self.tracking_uri)).get_run(active.run_id)
            except mlflow.exceptions.MlflowException as error:
                raise ArgumentError(
                    f"tracking_uri={str(self.tracking_uri)!r}: the active MLflow run {active.run_id} is stored at "
                    f"{mlflow.get_tracking_uri()!r}. {fix}"
                ) from error
        if self.experiment is not None:
            name = self._client.get_experiment(active.experiment_id).name
            if name != self.experiment:
                raise ArgumentError(
                    f"experiment={self.experiment!r}: the active MLflow run {active.run_id} belongs to {name!r}. {fix}"
                )

    def _experiment_id(self) -> str:
        experiment = self._client.get_experiment_by_name(self.experiment)
        if experiment is None:
            return str(self._client.create_experiment(self.experiment))
        return str(experiment.experiment_id)

    def _describe(self, entities: Any, about: dict[str, Any]) -> None:
        existing = self._client.get_run(self.run_id).data.params
        settings = {_name(name): str(value)[:PARAMETER_LENGTH] for name, value in _flatten(about)}
        params = [entities.Param(name, value) for name, value in settings.items() if name not in existing]
        tags = [entities.RunTag(str(name), str(value)) for name, value in (self.tags or {}).items()]
        for entries, kind in ((params, "params"), (tags, "tags")):
            for start in range(0, len(entries), BATCH_LENGTH):
                self._client.log_batch(self.run_id, **{kind: entries[start : start + BATCH_LENGTH]})

    def _end(self, status: str) -> None:
        if self._client is None and self._restore is None:
            return
        client, owns_run, restore = self._client, self._owns_run, self._restore
        self._client, self._owns_run, self._restore = None, False, None
        mlflow = _mlflow()
        try:
            active = mlflow.active_run()
            if owns_run and active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status)
            elif owns_run:
                # No longer this thread's active run, but still ours to end.
                client.set_terminated(self.run_id, status)
        finally:
            if restore is not None:
                mlflow.set_tracking_uri(restore[0])


def _mlflow() -> Any:
    try:
        import_module("mlflow.entities")
        return import_module("mlflow")
    except ImportError as error:
        raise MissingPackageError(
            f"orca.callbacks.MLflow needs the package mlflow, which cannot be imported ({error}). Run: pip install "
            "mlflow, or pip install mlflow-skinny if a tracking server stores the runs."
        ) from error


def _client(mlflow: Any, uri: str) -> Any:
    if uri.split(":")[0].split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        for package in ("sqlalchemy", "alembic"):
            try:
                import_module(package)
            except ImportError as error:
                raise MissingPackageError(
                    f"tracking_uri={uri!r} is a database, for which MLflow needs {package}; mlflow-skinny does not "
                    "install it. Run: pip install mlflow, or give the tracking_uri of a server."
                ) from error
    return mlflow.MlflowClient(tracking_uri=uri)


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested dicts by dotted name.

    >>> list(_flatten({"epochs": 3, "config": {"lr": 0.1}}))
    [('epochs', 3), ('config.lr', 0.1)]
    """
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _name(name: str) -> str:
    """Return a name that MLflow accepts, which must also be valid as a file path.

    >>> _name("precision@5"), _name("../x")
    ('precision_5', '___x')
    """
    name = re.sub(r"[^\w.\- /]", "_", str(name))[:250]
    path = posixpath.normpath(name)
    return re.sub(r"[./]", "_", name) if path != name or path.startswith((".", "/")) else name
