"""The logger that writes what a run reports to MLflow, from the driver."""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from orca.callbacks import Logger
from orca.errors import ArgumentError, MissingPackageError
from orca.loggers import numbers_of

PARAMETER_LENGTH = 6000
"""The longest value of a parameter that MLflow takes."""


class MLflow(Logger):
    """Logs to MLflow: settings and config as parameters, the values of each epoch as metrics.

    If the program has an active run, it is joined and left open. Otherwise a run is begun, called `run_name`, in
    `experiment` at `tracking_uri` (each is MLflow's own choice if not given), and ended with the fit. `run_id` says
    which run it was. MLflow never changes a parameter: in a joined run the first value stays.
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
        self._begun = False
        self._restore: tuple[str | None] | None = None
        """The tracking URI to go back to, in a tuple because None is one."""

    def start(self, about: dict[str, Any]) -> None:
        mlflow = _mlflow()
        # A fit that never came to its end must not pass for a run of the user's.
        self._end("FAILED")
        active = mlflow.active_run()
        try:
            if active is None:
                self._move(mlflow)
            self._client = _client(mlflow, mlflow.get_tracking_uri())
            if active is not None:
                self._check_same(mlflow, active.info)
                self.run_id = active.info.run_id
            else:
                place = {} if self.experiment is None else {"experiment_id": self._experiment_id()}
                self.run_id = mlflow.start_run(run_name=self.run_name, **place).info.run_id
                self._begun = True
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

    def _move(self, mlflow: Any) -> None:
        """Make `tracking_uri` the place for new runs until the end of this one."""
        if self.tracking_uri is not None:
            self._restore = (mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None,)
            mlflow.set_tracking_uri(self.tracking_uri)

    def _check_same(self, mlflow: Any, active: Any) -> None:
        """Refuse to join a run that lies elsewhere than was asked for."""
        fix = "End that run first with mlflow.end_run(), or leave the argument out to join it."
        if self.tracking_uri is not None:
            # Two spellings can mean one place, so the place is asked rather than its name compared.
            try:
                _client(mlflow, str(self.tracking_uri)).get_run(active.run_id)
            except mlflow.exceptions.MlflowException as error:
                raise ArgumentError(
                    f"tracking_uri={str(self.tracking_uri)!r}: the active MLflow run {active.run_id} is not there but "
                    f"at {mlflow.get_tracking_uri()!r}. {fix}"
                ) from error
        if self.experiment is not None:
            name = self._client.get_experiment(active.experiment_id).name
            if name != self.experiment:
                raise ArgumentError(
                    f"experiment={self.experiment!r}: the active MLflow run {active.run_id} belongs to {name!r}. {fix}"
                )

    def _experiment_id(self) -> str:
        known = self._client.get_experiment_by_name(self.experiment)
        return str(known.experiment_id if known is not None else self._client.create_experiment(self.experiment))

    def _describe(self, entities: Any, about: dict[str, Any]) -> None:
        known = self._client.get_run(self.run_id).data.params
        told = {_name(name): str(value)[:PARAMETER_LENGTH] for name, value in _flat(about)}
        params = [entities.Param(name, value) for name, value in told.items() if name not in known]
        tags = [entities.RunTag(str(name), str(value)) for name, value in (self.tags or {}).items()]
        for entries, kind in ((params, "params"), (tags, "tags")):
            for low in range(0, len(entries), 100):  # the most that MLflow takes at once
                self._client.log_batch(self.run_id, **{kind: entries[low : low + 100]})

    def _end(self, status: str) -> None:
        if self._client is None and self._restore is None:
            return
        client, begun, restore = self._client, self._begun, self._restore
        self._client, self._begun, self._restore = None, False, None
        mlflow = _mlflow()
        try:
            active = mlflow.active_run()
            if begun and active is not None and active.info.run_id == self.run_id:
                mlflow.end_run(status)
            elif begun:
                # It is not this thread's active run any more, but it is still ours to end.
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
            "mlflow, or pip install mlflow-skinny if a tracking server keeps the runs."
        ) from error


def _client(mlflow: Any, uri: str) -> Any:
    if uri.split(":")[0].split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql"):
        for package in ("sqlalchemy", "alembic"):
            try:
                import_module(package)
            except ImportError as error:
                raise MissingPackageError(
                    f"tracking_uri={uri!r} is a database, for which MLflow needs {package}; mlflow-skinny does not "
                    "bring it. Run: pip install mlflow, or give the tracking_uri of a server."
                ) from error
    return mlflow.MlflowClient(tracking_uri=uri)


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested dicts.

    >>> list(_flat({"epochs": 3, "config": {"lr": 0.1}}))
    [('epochs', 3), ('config.lr', 0.1)]
    """
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _name(name: str) -> str:
    """A name that MLflow takes, which has to be good as a path of a file too.

    >>> _name("precision@5"), _name("../x")
    ('precision_5', '___x')
    """
    name = re.sub(r"[^\w.\- /]", "_", str(name))[:250]
    path = posixpath.normpath(name)
    return re.sub(r"[./]", "_", name) if path != name or path.startswith((".", "/")) else name
