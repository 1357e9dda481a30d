"""Models of a store on the runtime of the context: predict, fit and score in the background, and functions."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orca.callbacks import Logger
from orca.core.arguments import check_count, check_data, check_example, check_flag, optional, shown, wrong
from orca.core.pickling import check_picklable
from orca.errors import ArgumentError, NotStoredError, UnknownArgumentError, suggest
from orca.store.handles import Handle, Task, start
from orca.store.names import check_alias, check_name, parse
from orca.store.packing.facts import Request
from orca.store.values import Version

if TYPE_CHECKING:
    from orca.estimator import Estimator
    from orca.store.store import Store


class Runtime:
    """Runs models of a store, and functions that create models, on the active context."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def model(self, name: str, *, into: Any = None, workers: int | None = None, trusted: bool = False) -> ModelRuntime:
        """Return a model of the store, to predict, fit or score on the runtime of the context.

        Args:
            name: ``name``, ``name@3``, ``name@alias``, ``name@latest`` or ``name^``.
            into: An Estimator that receives the stored weights; fit and score need one unless the model is Keras'.
            workers: Number of workers. Default: one on this machine, all cores of a cluster.
            trusted: Whether the model may run code that it holds, and virtual datasets that others have signed.

        Raises:
            NotStoredError: There is no such model, version or alias.
        """
        parse("name", name)
        count = optional(check_count)("workers", workers)
        if into is not None:
            from orca.estimator import Estimator

            if not isinstance(into, Estimator):
                raise ArgumentError(f"into= is a {type(into).__name__}; expected an Estimator.")
        version = self._store.models.resolve(name)
        return ModelRuntime(self._store, version, into, count, check_flag("trusted", trusted))

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        save_as: str | None = None,
        example: Any = None,
        tag: str | None = None,
        **kwargs: Any,
    ) -> Handle:
        """Call a function on a worker of the context; with `save_as` store the model that it returns.

        Args:
            function: Called with the other arguments. With `save_as` it returns anything that ``models.put`` takes,
                such as a trained Keras model or the path of a SavedModel on the worker.
            save_as: Name of the model in the store.
            example: A few rows of input, as for ``models.put``.
            tag: Alias that moves to the new version.

        Returns:
            A handle; ``get()`` returns the new Version, or without `save_as` what the function returned.
        """
        _check_callable(function, args, kwargs)
        name = optional(check_name)("save_as", save_as)
        request = Request(optional(check_example)("example", example))
        tags = [] if tag is None else [check_alias("tag", tag)]
        if name is None and (example is not None or tags):
            raise ArgumentError("example= and tag= are for a model that is stored: pass save_as=.")
        check_picklable(function=function, args=args, kwargs=kwargs)
        models = self._store.models

        def work(task: Task) -> Any:
            from orca.context import current

            outcome = current().gang(1).call(_run, function, args, kwargs, None if name is None else request)[0]
            task.check()
            if name is None:
                return outcome
            manifest, contents = outcome
            return models.add(name, lambda folder: _unpacked(folder, manifest, contents), tags)

        return start(work, f"run of {getattr(function, '__name__', 'a function')}")


def _check_callable(function: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    if not callable(function):
        raise wrong("function", function, "a function")
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(f"function={shown(function)} cannot be called with these arguments: {error}.") from error
    except ValueError:  # a function of C that does not describe its parameters
        return


def _run(context: object, function: Callable[..., Any], args: Any, kwargs: Any, request: Request | None) -> Any:
    """Call the function on a worker; return its result, or the files of the model that it is."""
    result = function(*args, **kwargs)
    if request is None:
        return result
    from orca.store.packing.models import pack

    with tempfile.TemporaryDirectory(prefix="orca-model-") as temporary:
        folder = Path(temporary)
        manifest = pack(result, folder, request)
        return manifest, {name: (folder / name).read_bytes() for name in manifest["files"]}


def _unpacked(folder: Path, manifest: Mapping[str, Any], contents: Mapping[str, bytes]) -> Mapping[str, Any]:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return manifest


@dataclass(frozen=True)
class ModelRuntime:
    """One version of a model. Its calls return at once, with a handle to the result."""

    _store: Store
    version: Version
    _into: Any = None
    _workers: int | None = None
    _trusted: bool = False

    def predict(self, data: Any, *, save_as: str | None = None, **options: Any) -> Handle:
        """Return a handle to the predictions for data, or for the dataset of a name.

        Args:
            data: Arrays, a DataFrame, XShards, a Ray Dataset, a Spark DataFrame, or the name of a dataset.
            save_as: Name of a dataset that receives the predictions.
            **options: Arguments of `Estimator.predict`.

        Returns:
            A handle; ``get()`` and ``numpy.asarray`` wait for the predictions, in the kind of the data.
        """
        name = optional(check_name)("save_as", save_as)
        read = self._reader(data)
        _check_options("predict", options)

        def work(task: Task) -> Any:
            result = self._predictor().predict(_checked(task, read), **options)
            task.check()
            if name is not None:
                self._store.datasets.put(result, name, replace=True)
            return result

        return start(work, f"predict of {self.version}")

    def fit(self, data: Any, y: Any = None, *, tag: str | None = None, **options: Any) -> Handle:
        """Train the model further, and store the result as the next version of its name.

        Args:
            data: Rows as for `Estimator.fit`, or the name of a dataset.
            y: Labels, or the name of a dataset.
            tag: Alias that moves to the new version.
            **options: Arguments of `Estimator.fit`.

        Returns:
            A handle; ``get()`` returns the new Version, with its parent, the names of its data and its history.
        """
        tags = [] if tag is None else [check_alias("tag", tag)]
        read, labels = self._reader(data), None if y is None else self._reader(y)
        _check_options("fit", options)
        self._check_native("fit")
        names = [value for value in (data, y) if isinstance(value, str)]
        origin = {"parent": str(self.version), **({"data": names} if names else {})}

        def work(task: Task) -> Version:
            estimator = self._estimator()
            rows = _checked(task, read)
            targets = None if labels is None else _checked(task, labels)
            stopper = _Stopper(task)
            history = estimator.fit(rows, targets, **{**options, "callbacks": _with(options.get("callbacks"), stopper)})
            task.check()
            is_model = self._into is None and self.version.manifest["native"]["form"] == "keras"
            model = estimator.get_model() if is_model else estimator
            position = {"epoch": estimator.epoch, "step": estimator.step, "seed": estimator.seed}
            from orca.store.packing.models import pack

            def fill(folder: Path) -> Mapping[str, Any]:
                return {**pack(model, folder, Request(history=history, origin=origin)), "position": position}

            return self._store.models.add(self.version.name, fill, tags)

        return start(work, f"fit of {self.version}")

    def score(self, data: Any, y: Any = None, **options: Any) -> Handle:
        """Return a handle to one number, the greater the better; arguments are those of `Estimator.score`."""
        return self._measure("score", data, y, options)

    def evaluate(self, data: Any, y: Any = None, **options: Any) -> Handle:
        """Return a handle to loss and metrics; arguments are those of `Estimator.evaluate`."""
        return self._measure("evaluate", data, y, options)

    def _measure(self, call: str, data: Any, y: Any, options: Mapping[str, Any]) -> Handle:
        read, labels = self._reader(data), None if y is None else self._reader(y)
        _check_options(call, options)
        self._check_native(call)

        def work(task: Task) -> Any:
            targets = None if labels is None else _checked(task, labels)
            return getattr(self._estimator(), call)(_checked(task, read), targets, **options)

        return start(work, f"{call} of {self.version}")

    def _reader(self, data: Any) -> Callable[[], Any]:
        """Return a function that provides the data; whether a dataset exists is checked now."""
        if not isinstance(data, str):
            check_data("data", data)
            return lambda: data
        name = parse("data", data, options=True).name
        if not self._store.datasets.exists(name):
            hint = suggest(name, self._store.datasets.list())
            raise NotStoredError(f"data={data!r}: there is no dataset of this name in the store.{hint}")
        return lambda: self._store.datasets.rows(data, self._trusted)

    def _predictor(self) -> Estimator:
        """Return an estimator that predicts: with the converted model, unless the caller has passed one."""
        if self._into is not None:
            return self._estimator()
        return self._store.models.predictor(self.version, self._worker_count())

    def _check_native(self, call: str) -> None:
        if self._into is None and not str(self.version.manifest["native"].get("form")).startswith("keras"):
            raise ArgumentError(
                f"{call}: {self.version} is a {self.version.kind} model, whose class, loss and optimizer a store does "
                "not keep. Pass an Estimator of it: runtime.model(name, into=estimator)."
            )

    def _estimator(self) -> Estimator:
        """Return an estimator in the framework of the model, ready to fit."""
        from orca.estimator import Estimator

        name = str(self.version)
        model = self._store.models.get(name, into=self._into, trusted=self._trusted)
        if isinstance(model, Estimator):
            return model
        return Estimator.from_keras(model=model, workers=self._workers or 1)

    def _worker_count(self) -> int:
        """Return how many workers predict: one model with all threads on this machine, or all cores of a cluster."""
        from orca.context import current

        context = current()
        return self._workers or (1 if context.runtime == "local" else context.cores)

    def __repr__(self) -> str:
        return f"<ModelRuntime: {self.version}>"


class _Stopper(Logger):
    """Ends a fit whose handle was cancelled."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def epoch(self, record: dict[str, Any]) -> None:
        self._task.check()


def _with(callbacks: Any, stopper: _Stopper) -> list[Any]:
    several = callbacks if isinstance(callbacks, Sequence) else [] if callbacks is None else [callbacks]
    return [*several, stopper]


def _checked(task: Task, read: Callable[[], Any]) -> Any:
    task.check()
    data = read()
    task.check()
    return data


def _check_options(call: str, options: Mapping[str, Any]) -> None:
    """Raise for an option that the method of Estimator does not have."""
    from orca.estimator import Estimator

    known = [
        name for name in inspect.signature(getattr(Estimator, call)).parameters if name not in ("self", "data", "y")
    ]
    for name in options:
        if name not in known:
            raise UnknownArgumentError(f"{call}() has no argument {name}=.{suggest(name, known)}")
