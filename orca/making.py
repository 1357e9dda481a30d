"""The from_* methods: a model of a framework, and what belongs to it, becomes an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from orca.backends.registry import find
from orca.callbacks import LRScheduler
from orca.context import current
from orca.core.arguments import check_count
from orca.errors import ArgumentError
from orca.metrics import Metric, resolve

if TYPE_CHECKING:
    from typing import Self

    from orca.backends.base import Backend


class Making:
    """The part of an estimator that makes it."""

    _maker: Callable[..., Any] | None
    _params: dict[str, Any]

    if TYPE_CHECKING:

        def __init__(self, backend: Backend, spec: Any, **settings: Any) -> None: ...

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
        """Make an estimator from a PyTorch model.

        ``model`` is a module, a class of one or a creator ``fn(config)``; ``optimizer`` an optimizer of that
        module, a class or a creator ``fn(model, config)``; ``loss`` a loss module, class, creator or function
        of (output, target) that returns the mean over the rows. ``scheduler_creator`` is
        ``fn(optimizer, config)``; its scheduler steps after every epoch, or with ``scheduler_step="step"`` after
        every step. ``train_step`` is a function ``fn(step)`` that does a whole step by itself, for example with
        several optimizers; see `orca.backends.torch.custom.Step`.

        ``backend`` is "torch_distributed" (further options: ``sharded=True`` for FSDP2, ``compression``),
        "horovod" (``compression="fp16"``) or "parameter_server" (``mode="sync"`` or "async", for the latter
        ``staleness`` and ``servers``; ``compression``). ``epochs`` and ``batch_size`` are what `fit` uses if it
        is not told otherwise. Checkpoints of `fit` go to ``model_dir``, any fsspec path.
        """
        given = {key: value for key, value in locals().items() if key not in ("cls", "backend_options")}
        found = find("torch", backend)
        from orca.backends.torch.spec import TorchSpec

        spec = TorchSpec(
            model, optimizer, loss, dict(config or {}), train_step, precision, sync_batchnorm, backend_options
        )
        scheduler = None if scheduler_creator is None else LRScheduler(scheduler_creator, per=scheduler_step)
        return cls._made(cls.from_torch, found, spec, given, backend_options, scheduler=scheduler)

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
        """Make an estimator from a Keras model.

        ``model`` (or ``keras_model``) is a compiled Keras 3 model, which stays as it is; ``model_creator`` a function
        ``fn(config)`` that returns one, and with ``compile_args_creator`` need not compile it: that function
        ``fn(config)`` returns the arguments of ``model.compile``. The model's own loss, metrics, ``train_step``,
        ``jit_compile`` and precision policy are used; ``metrics`` are further ones of Orca's for `evaluate`.

        ``backend`` is "multiworker" (TensorFlow's collectives; also "tf2", "tf_distributed"), "horovod"
        (``compression="fp16"``), "parameter_server" (every worker owns a slice of the weights) or "mirrored"
        (MirroredStrategy: the workers are devices of one process).
        """
        given = {key: value for key, value in locals().items() if key not in ("cls", "backend_options")}
        if model is not None and keras_model is not None:
            raise ArgumentError("Give one of model= and keras_model=, not both.")
        found = find("keras", backend)
        from orca.backends.keras.spec import KerasSpec

        whole = model if keras_model is None else keras_model
        spec = KerasSpec(whole, model_creator, compile_args_creator, dict(config or {}), backend_options)
        return cls._made(cls.from_keras, found, spec, given, backend_options)

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
        """Make an estimator from an MXNet model (legacy: MXNet is retired).

        ``config`` comes from `create_config`. ``model_creator`` is a function ``fn(config)`` that returns a gluon
        Block, or a Module or Symbol with its loss as last layer; ``loss_creator`` one that returns a gluon loss.
        ``eval_metrics_creator`` and ``validation_metrics_creator`` return MXNet's metrics; all of them are reported
        for training and validation.

        ``backend`` is "parameter_server" (MXNet's KVStore: ``kvstore="dist_sync"``, "dist_device_sync" or
        "dist_async", and ``num_servers``, which run beside the workers together with a scheduler) or "horovod".
        """
        given = {key: value for key, value in locals().items() if key not in ("cls", "backend_options")}
        found = find("mxnet", backend)
        from orca.backends.mxnet.spec import MXNetSpec

        config = dict(config or {})
        options = {**backend_options, **({} if num_servers is None else {"num_servers": num_servers})}
        told = [made(config) for made in (eval_metrics_creator, validation_metrics_creator) if made is not None]
        seed = config.get("seed") if seed is None else seed
        spec = MXNetSpec(model_creator, loss_creator, config, options)
        every = _distinct(found, [metrics, *told])
        return cls._made(cls.from_mxnet, found, spec, given, backend_options, seed=seed, metrics=every)

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
        """Make an estimator that only predicts, from a file of OpenVINO's or one that it can convert.

        ``model_path`` is an IR (.xml with its .bin beside it), an ONNX, .keras, TorchScript (.pt) or ExportedProgram
        (.pt2) file or a SavedModel folder, also at an fsspec URL; ``model`` a live torch, Keras or OpenVINO model.
        A torch module has to be told what its inputs look like, by ``shape`` or by ``example``, a few rows.

        ``shape`` sets the shape of the input, with None for any length: a tuple, or a list or dict of them for
        several inputs. ``layout`` is that of the data if it is not the model's, such as "NHWC". ``config`` has
        "device" ("CPU"), "performance_hint" ("throughput" or "latency"), "num_streams", "num_requests",
        "num_threads", "precision" ("f32"; "f16", "bf16", or "auto" for the device's own), "cache_dir" for compiled
        models, "mean" and "scale" for the input, and OpenVINO's own properties in capitals.
        """
        given = {key: value for key, value in locals().items() if key != "cls"}
        found = find("openvino", "openvino")
        from orca.backends.openvino.spec import OpenvinoSpec

        spec = OpenvinoSpec.make(model_path, model, config, layout, shape, example)
        return cls._made(cls.from_openvino, found, spec, given, {})

    @classmethod
    def _made(
        cls,
        maker: Callable[..., Any],
        backend: Backend,
        spec: Any,
        given: dict[str, Any],
        options: dict[str, Any],
        **changed: Any,
    ) -> Self:
        """An estimator from what a ``from_*`` method was given, which it keeps as its parameters."""
        names = ("metrics", "seed", "model_dir", "epochs", "batch_size")
        common = {name: given[name] for name in names if name in given}
        workers = _worker_count(given["workers"], given["num_workers"], given["workers_per_node"])
        made = cls(backend, spec, workers=workers, **{**common, **changed})
        made._maker, made._params = maker, {**given, **options}
        return made


def _distinct(backend: Backend, given: list[Any]) -> list[Metric] | None:
    """Metrics given in several places, each name once."""
    found: dict[str, Metric] = {}
    for part in given:
        for metric in resolve(part, adapt=backend.adapt_metric, class_axis=backend.class_axis):
            found.setdefault(metric.name, metric)
    return list(found.values()) or None


def _worker_count(workers: int | None, num_workers: int | None, per_node: int | None) -> int:
    given = [value for value in (workers, num_workers) if value is not None]
    if len(given) > 1 or (given and per_node is not None):
        raise ArgumentError("Give one of workers=, num_workers= and workers_per_node=, not several.")
    if per_node is None:
        return given[0] if given else 1
    return check_count("workers_per_node", per_node) * current().nodes
