"""The from_* methods: create an estimator from a model of a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orca.backends.registry import find
from orca.context import current
from orca.core.arguments import check_count
from orca.errors import ArgumentError, suggest

if TYPE_CHECKING:
    from typing import Self

    from orca.backends.base import Backend, Spec


class Making:
    """The constructors of an estimator."""

    _maker: Callable[..., Any] | None
    _params: dict[str, Any]

    if TYPE_CHECKING:

        def __init__(self, backend: Backend[Any], spec: Spec, **settings: Any) -> None: ...

    @classmethod
    def from_backend(
        cls,
        name: str,
        *,
        workers: int | None = None,
        num_workers: int | None = None,
        workers_per_node: int | None = None,
        metrics: Any = None,
        seed: int | None = None,
        model_dir: str | None = None,
        epochs: int = 1,
        batch_size: int = 32,
        **arguments: Any,
    ) -> Self:
        """Create an estimator for any registered backend, those of other packages included.

        Args:
            name: Full name of the backend, as of its entry point: "torch.horovod".
            workers: Number of workers (also ``num_workers``), or ``workers_per_node`` times the nodes.
            metrics: Metrics by name, objects of `orca.metrics` or of the framework, or functions.
            seed: Seed of weights, shuffling and dropout; random if None.
            model_dir: Folder for checkpoints, any fsspec path.
            epochs: Default for `fit`, as is ``batch_size``.
            arguments: The model and further arguments of the framework, and options of the backend.

        Raises:
            ArgumentError: The backend or an argument is unknown, or a value cannot work.
            MissingPackageError: A package of the backend is not installed.

        >>> import torch
        >>> est = Estimator.from_backend("torch.torch_distributed", model=torch.nn.Linear(2, 1), compression="fp16")
        >>> est.get_params()["compression"]
        'fp16'
        """
        backend = find(name)
        _check_arguments(backend, arguments)
        options = {key: value for key, value in arguments.items() if key in backend.traits.options}
        rest = {key: value for key, value in arguments.items() if key not in options}
        settings = {
            "metrics": metrics,
            "seed": seed,
            "model_dir": model_dir,
            "epochs": epochs,
            "batch_size": batch_size,
        }
        count = _worker_count(workers, num_workers, workers_per_node)
        estimator = cls(backend, backend.framework.spec(rest, options), workers=count, **settings)
        places = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
        estimator._maker, estimator._params = cls.from_backend, {"name": name, **places, **settings, **arguments}
        return estimator

    @classmethod
    def from_torch(
        cls,
        *,
        model: Any,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        scheduler_creator: Callable[..., Any] | None = None,
        scheduler_step: str = "epoch",
        config: dict[str, Any] | None = None,
        backend: str = "torch_distributed",
        workers: int | None = None,
        num_workers: int | None = None,
        workers_per_node: int | None = None,
        model_dir: str | None = None,
        seed: int | None = None,
        precision: str = "fp32",
        sync_batchnorm: bool = False,
        train_step: Callable[..., Any] | None = None,
        epochs: int = 1,
        batch_size: int = 32,
        **backend_options: Any,
    ) -> Self:
        """Create an estimator from a PyTorch model; see `from_backend` for the arguments that all frameworks share.

        Args:
            model: A module, a module class or a creator ``fn(config)``.
            optimizer: An optimizer of that module, a class or a creator ``fn(model, config)``.
            loss: A loss module, class, creator or function of (output, target) that returns the mean over the rows.
            scheduler_creator: ``fn(optimizer, config)``; its scheduler steps after every epoch, or with
                ``scheduler_step="step"`` after every step.
            config: Passed to creators; names like those of a class' parameters are its arguments.
            backend: "torch_distributed" (options: ``sharded=True`` for FSDP2, ``compression``), "horovod"
                (``compression="fp16"``) or "parameter_server" (``mode="sync"`` or "async", for the latter
                ``staleness`` and ``servers``; ``compression``).
            precision: "fp32", "bf16" or "fp16".
            sync_batchnorm: Compute batch statistics over all workers.
            train_step: ``fn(step)`` that does a whole step by itself, for example with several optimizers; see
                `orca.backends.torch.custom.Step`.
            backend_options: Options of the backend.
        """
        return cls.from_backend(
            f"torch.{backend}",
            workers=workers,
            num_workers=num_workers,
            workers_per_node=workers_per_node,
            metrics=metrics,
            seed=seed,
            model_dir=model_dir,
            epochs=epochs,
            batch_size=batch_size,
            model=model,
            optimizer=optimizer,
            loss=loss,
            scheduler_creator=scheduler_creator,
            scheduler_step=scheduler_step,
            config=config,
            precision=precision,
            sync_batchnorm=sync_batchnorm,
            train_step=train_step,
            **backend_options,
        )._made_by(cls.from_torch, backend=backend)

    @classmethod
    def from_keras(
        cls,
        *,
        model: Any = None,
        keras_model: Any = None,
        model_creator: Callable[..., Any] | None = None,
        compile_args_creator: Callable[..., Any] | None = None,
        metrics: Any = None,
        config: dict[str, Any] | None = None,
        backend: str = "multiworker",
        workers: int | None = None,
        num_workers: int | None = None,
        workers_per_node: int | None = None,
        model_dir: str | None = None,
        seed: int | None = None,
        epochs: int = 1,
        batch_size: int = 32,
        **backend_options: Any,
    ) -> Self:
        """Create an estimator from a Keras model; see `from_backend` for the arguments that all frameworks share.

        The model's own loss, metrics, ``train_step``, ``jit_compile`` and precision policy are used; ``metrics`` are
        further ones of Orca's for `evaluate`.

        Args:
            model: A compiled Keras 3 model (also ``keras_model``), which stays as it is.
            model_creator: ``fn(config)`` that returns a model.
            compile_args_creator: ``fn(config)`` that returns the arguments of ``model.compile``, for a creator that
                does not compile its model.
            config: Passed to creators.
            backend: "multiworker" (TensorFlow's collectives; also "tf2", "tf_distributed"), "horovod"
                (``compression="fp16"``), "parameter_server" (every worker owns a slice of the weights) or "mirrored"
                (MirroredStrategy: the workers are devices of one process).
            backend_options: Options of the backend.
        """
        return cls.from_backend(
            f"keras.{backend}",
            workers=workers,
            num_workers=num_workers,
            workers_per_node=workers_per_node,
            metrics=metrics,
            seed=seed,
            model_dir=model_dir,
            epochs=epochs,
            batch_size=batch_size,
            model=model,
            keras_model=keras_model,
            model_creator=model_creator,
            compile_args_creator=compile_args_creator,
            config=config,
            **backend_options,
        )._made_by(cls.from_keras, backend=backend)

    @classmethod
    def from_mxnet(
        cls,
        *,
        model_creator: Callable[..., Any],
        loss_creator: Callable[..., Any] | None = None,
        config: dict[str, Any] | None = None,
        eval_metrics_creator: Callable[..., Any] | None = None,
        validation_metrics_creator: Callable[..., Any] | None = None,
        metrics: Any = None,
        backend: str = "parameter_server",
        workers: int | None = None,
        num_workers: int | None = None,
        workers_per_node: int | None = None,
        num_servers: int | None = None,
        model_dir: str | None = None,
        seed: int | None = None,
        epochs: int = 1,
        batch_size: int = 32,
        **backend_options: Any,
    ) -> Self:
        """Create an estimator from an MXNet model (legacy: MXNet is retired); see `from_backend` for shared arguments.

        Args:
            model_creator: ``fn(config)`` that returns a gluon Block, or a Module or Symbol with its loss as last layer.
            loss_creator: ``fn(config)`` that returns a gluon loss.
            config: The result of `create_config`, passed to creators.
            eval_metrics_creator: ``fn(config)`` that returns MXNet's metrics, as does ``validation_metrics_creator``;
                all of them are reported for training and validation.
            backend: "parameter_server" (MXNet's KVStore: ``kvstore="dist_sync"``, "dist_device_sync" or
                "dist_async", and ``num_servers``, which run beside the workers with a scheduler) or "horovod".
            backend_options: Options of the backend.
        """
        if num_servers is not None:
            backend_options["num_servers"] = num_servers
        return cls.from_backend(
            f"mxnet.{backend}",
            workers=workers,
            num_workers=num_workers,
            workers_per_node=workers_per_node,
            metrics=metrics,
            seed=seed,
            model_dir=model_dir,
            epochs=epochs,
            batch_size=batch_size,
            model_creator=model_creator,
            loss_creator=loss_creator,
            config=config,
            eval_metrics_creator=eval_metrics_creator,
            validation_metrics_creator=validation_metrics_creator,
            **backend_options,
        )._made_by(cls.from_mxnet, backend=backend, num_servers=num_servers)

    @classmethod
    def from_openvino(
        cls,
        *,
        model_path: Any = None,
        model: Any = None,
        config: dict[str, Any] | None = None,
        layout: Any = None,
        shape: Any = None,
        example: Any = None,
        workers: int | None = None,
        num_workers: int | None = None,
        workers_per_node: int | None = None,
    ) -> Self:
        """Create an estimator that only predicts, from an OpenVINO file or one that OpenVINO can convert.

        Args:
            model_path: An IR (.xml with its .bin beside it), an ONNX, .keras, TorchScript (.pt) or ExportedProgram
                (.pt2) file or a SavedModel folder, also at an fsspec URL.
            model: A live torch, Keras or OpenVINO model. A torch module needs ``shape`` or ``example``.
            config: "device" ("CPU"), "performance_hint" ("throughput" or "latency"), "num_streams", "num_requests",
                "num_threads", "precision" ("f32"; "f16", "bf16", or "auto" for the device's own), "cache_dir" for
                compiled models, "mean" and "scale" for the input, and OpenVINO's own properties in capitals.
            layout: Layout of the data if it is not the model's, such as "NHWC".
            shape: Shape of the input, with None for any length: a tuple, or a list or dict of them.
            example: A few rows of input.
            workers: Number of workers (also ``num_workers``), or ``workers_per_node`` times the nodes.
        """
        return cls.from_backend(
            "openvino.openvino",
            workers=workers,
            num_workers=num_workers,
            workers_per_node=workers_per_node,
            model_path=model_path,
            model=model,
            config=config,
            layout=layout,
            shape=shape,
            example=example,
        )._made_by(cls.from_openvino, without=("metrics", "seed", "model_dir", "epochs", "batch_size"))

    def _made_by(self, maker: Callable[..., Any], without: tuple[str, ...] = (), **params: Any) -> Self:
        """Set the ``from_*`` method whose parameters `get_params` returns, in place of `from_backend`."""
        shared = {key: value for key, value in self._params.items() if key not in ("name", *without)}
        self._maker, self._params = maker, {**shared, **params}
        return self


def _check_arguments(backend: Backend[Any], arguments: dict[str, Any]) -> None:
    """Raise if an argument is known neither to the framework nor to the backend."""
    framework, options = backend.framework, backend.traits.options
    for name, value in arguments.items():
        if name not in framework.arguments and name not in options:
            raise ArgumentError(
                f"{name}={value!r} is not an option of backend={backend.name!r}."
                + (f" Its options: {', '.join(options)}." if options else " It has none.")
                + f" Arguments of {framework.name}: {', '.join(framework.arguments)}."
                + suggest(name, (*options, *framework.arguments))
            )


def _worker_count(workers: int | None, num_workers: int | None, per_node: int | None) -> int:
    counts = [count for count in (workers, num_workers) if count is not None]
    if len(counts) > 1 or (counts and per_node is not None):
        raise ArgumentError("Give one of workers=, num_workers= and workers_per_node=, not several.")
    if per_node is None:
        return counts[0] if counts else 1
    return check_count("workers_per_node", per_node) * current().nodes
