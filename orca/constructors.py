"""The constructors of an estimator: `from_backend`, and one with named arguments for each built-in framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orca.backends.registry import create_spec, find
from orca.context import current
from orca.core.arguments import check_count, check_text, known_arguments
from orca.errors import ArgumentError
from orca.runs.params import Recipe
from orca.runs.values import Learned, Setup

if TYPE_CHECKING:
    from orca.backends.base import Backend
    from orca.estimator import Estimator


def from_backend(
    cls: type[Estimator],
    /,
    name: str,
    *,
    workers: int | None = None,
    num_workers: int | None = None,
    workers_per_node: int | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
    metrics: Any = None,
    seed: int | None = None,
    model_dir: str | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    **arguments: Any,
) -> Estimator:
    """Create an estimator for any registered backend, those of other packages included.

    Args:
        name: Full name of the backend, as of its entry point: "torch.horovod".
        workers: Number of workers (also ``num_workers``), or ``workers_per_node`` times the nodes.
        resources_per_worker: What each worker holds during a call, such as ``{"CPU": 2, "GPU": 1}``, and on clusters
            further resources by name. A worker uses as many threads as CPUs and sees only its own GPUs.
        use_gpu: Short for one GPU per worker.
        metrics: Metrics by name, objects of `orca.metrics` or of the framework, or functions.
        seed: Seed of weights, shuffling and dropout; random if None.
        model_dir: Folder for checkpoints, any fsspec path.
        epochs: Default for `fit`, as is ``batch_size``.
        arguments: The model and further arguments of the framework, and options of the backend.

    Raises:
        ArgumentError: The backend or an argument is unknown, or a value cannot work.
        MissingPackageError: A package of the backend is not installed.

    >>> import torch
    >>> from orca import Estimator
    >>> est = Estimator.from_backend("torch.torch_distributed", model=torch.nn.Linear(2, 1), compression="fp16")
    >>> est.get_params()["compression"]
    'fp16'
    """
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    settings = {"metrics": metrics, "seed": seed, "model_dir": model_dir, "epochs": epochs, "batch_size": batch_size}
    recipe = Recipe("from_backend", {"name": name, **places, **settings, **arguments})
    return _build(cls, recipe, find(check_text("name", name), argument="name"), places | settings, arguments)


def from_torch(
    cls: type[Estimator],
    /,
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
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
    model_dir: str | None = None,
    seed: int | None = None,
    precision: str = "fp32",
    sync_batchnorm: bool = False,
    train_step: Callable[..., Any] | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    **backend_options: Any,
) -> Estimator:
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
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    settings = {"metrics": metrics, "seed": seed, "model_dir": model_dir, "epochs": epochs, "batch_size": batch_size}
    objects = {"model": model, "optimizer": optimizer, "loss": loss, "train_step": train_step, "config": config}
    schedule = {"scheduler_creator": scheduler_creator, "scheduler_step": scheduler_step}
    numerics = {"precision": precision, "sync_batchnorm": sync_batchnorm}
    arguments = {**objects, **schedule, **numerics, **backend_options}
    return _created(cls, "from_torch", "torch", backend, places | settings, arguments)


def from_keras(
    cls: type[Estimator],
    /,
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
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
    model_dir: str | None = None,
    seed: int | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    **backend_options: Any,
) -> Estimator:
    """Create an estimator from a Keras model; see `from_backend` for the arguments that all frameworks share.

    The model's own loss, metrics, ``train_step``, ``jit_compile`` and precision policy are used; ``metrics`` are
    further ones of Orca's for `evaluate`.

    Args:
        model: A compiled Keras 3 model (also ``keras_model``), which stays as it is.
        model_creator: ``fn(config)`` that returns a model.
        compile_args_creator: ``fn(config)`` that returns the arguments of ``model.compile``, for a creator that
            does not compile its model.
        config: Passed to creators.
        backend: "multiworker" (sums over all ranks; also "tf2", "tf_distributed"), "horovod"
            (``compression="fp16"``), "parameter_server" (every worker owns a slice of the weights) or "mirrored"
            (MirroredStrategy: the workers are devices of one process).
        backend_options: Options of the backend.
    """
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    settings = {"metrics": metrics, "seed": seed, "model_dir": model_dir, "epochs": epochs, "batch_size": batch_size}
    creators = {"model_creator": model_creator, "compile_args_creator": compile_args_creator}
    arguments = {"model": model, "keras_model": keras_model, **creators, "config": config, **backend_options}
    return _created(cls, "from_keras", "keras", backend, places | settings, arguments)


def from_mxnet(
    cls: type[Estimator],
    /,
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
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
    num_servers: int | None = None,
    model_dir: str | None = None,
    seed: int | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    **backend_options: Any,
) -> Estimator:
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
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    settings = {"metrics": metrics, "seed": seed, "model_dir": model_dir, "epochs": epochs, "batch_size": batch_size}
    creators = {"model_creator": model_creator, "loss_creator": loss_creator, "config": config}
    scores = {
        "eval_metrics_creator": eval_metrics_creator,
        "validation_metrics_creator": validation_metrics_creator,
    }
    arguments = {**creators, **scores, **backend_options}
    params = {"num_servers": num_servers}
    return _created(cls, "from_mxnet", "mxnet", backend, places | settings, arguments, params)


def from_graph(
    cls: type[Estimator],
    /,
    *,
    inputs: Any = None,
    outputs: Any = None,
    labels: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    metrics: Any = None,
    clip_norm: float | None = None,
    clip_value: float | tuple[float, float] | None = None,
    updates: Any = None,
    sess: Any = None,
    feed_dict: Any = None,
    model_path: str | None = None,
    signature: str | None = None,
    backend: str = "multiworker",
    workers: int | None = None,
    num_workers: int | None = None,
    workers_per_node: int | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
    model_dir: str | None = None,
    seed: int | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    **backend_options: Any,
) -> Estimator:
    """Create an estimator from a TensorFlow graph with placeholders; see `from_backend` for shared arguments.

    The graph is captured by this call and stays as it is.

    Args:
        inputs: The placeholders of the features: a tensor, a list or a dict; also names of tensors.
        outputs: The tensors that `predict` returns, with one entry per row.
        labels: The placeholders of the labels; an empty list for a loss without labels.
        loss: A scalar tensor, the mean over the rows.
        optimizer: An optimizer of ``tf.train``, or a dict of optimizers by the prefix of variable names.
        metrics: A dict of tensors (one number per batch or per row) and pairs of ``tf.metrics``, and metrics of Orca.
        clip_norm: Limit of the whole gradient's norm; ``clip_value`` limits each of its values.
        updates: Operations that run in each training step, besides those in the collection ``UPDATE_OPS``.
        sess: A session whose values the variables begin with, and which receives the learned values.
        feed_dict: Values of other placeholders: ``{placeholder: value}`` or ``{placeholder: (value in training,
            value in evaluate and predict)}``.
        model_path: A SavedModel folder, a frozen graph (.pb) or a checkpoint with a .meta file, in place of a graph of
            this process; ``signature`` chooses the inputs and outputs of a SavedModel.
        backend: "multiworker" (sums over all ranks; also "bigdl") or "horovod" (``compression="fp16"``).
        backend_options: Options of the backend.
    """
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    settings = {"metrics": metrics, "seed": seed, "model_dir": model_dir, "epochs": epochs, "batch_size": batch_size}
    tensors = {"inputs": inputs, "outputs": outputs, "labels": labels, "loss": loss, "optimizer": optimizer}
    steps = {"clip_norm": clip_norm, "clip_value": clip_value, "updates": updates, "sess": sess, "feed_dict": feed_dict}
    arguments = {**tensors, **steps, "model_path": model_path, "signature": signature, **backend_options}
    return _created(cls, "from_graph", "graph", backend, places | settings, arguments)


def from_bigdl(
    cls: type[Estimator],
    /,
    *,
    model: Any,
    loss: Any = None,
    optimizer: Any = None,
    metrics: Any = None,
    feature_preprocessing: Any = None,
    label_preprocessing: Any = None,
    model_dir: str | None = None,
    backend: str = "parameter_server",
    workers: int | None = None,
    num_workers: int | None = None,
    workers_per_node: int | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
    seed: int | None = None,
    epochs: int = 1,
    batch_size: int = 32,
    **backend_options: Any,
) -> Estimator:
    """Create an estimator from layers of `orca.bigdl`; see `from_backend` for the arguments that all frameworks share.

    The layers stay as they are; `get_model` returns layers with the learned weights. Class numbers count from 1 where
    the criterion counts so.

    Args:
        model: A layer, such as ``Sequential().add(Linear(4, 2))``, with the weights to begin with.
        loss: A criterion of `orca.bigdl.nn.criterion`.
        optimizer: An optim method of `orca.bigdl.optim.optimizer`, SGD by default, or a dict of them by the names of
            layers.
        metrics: Validation methods of `orca.bigdl.optim.optimizer`, and metrics as for all frameworks.
        feature_preprocessing: The size of a row of features, such as ``[28, 28]``, or a Preprocessing of
            `orca.bigdl.nnframes`; ``label_preprocessing`` likewise.
        backend: "parameter_server" (BigDL's own strategy), "torch_distributed" or "horovod", with the options that
            they have for torch models.
        backend_options: Options of the backend.
    """
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    settings = {"metrics": metrics, "seed": seed, "model_dir": model_dir, "epochs": epochs, "batch_size": batch_size}
    forms = {"feature_preprocessing": feature_preprocessing, "label_preprocessing": label_preprocessing}
    arguments = {"model": model, "loss": loss, "optimizer": optimizer, **forms, **backend_options}
    return _created(cls, "from_bigdl", "bigdl", backend, places | settings, arguments)


@known_arguments
def from_openvino(
    cls: type[Estimator],
    /,
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
    resources_per_worker: Mapping[str, float] | None = None,
    use_gpu: bool = False,
) -> Estimator:
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
        resources_per_worker: ``{"CPU": n}`` is the number of threads in this process; OpenVINO's device is part of
            ``config``, so there is no GPU to reserve.
        use_gpu: Refused, as for all models that compute on the CPU.
    """
    places: dict[str, Any] = {"workers": workers, "num_workers": num_workers, "workers_per_node": workers_per_node}
    places |= {"resources_per_worker": resources_per_worker, "use_gpu": use_gpu}
    arguments = {"model_path": model_path, "model": model, "config": config, "layout": layout, "shape": shape}
    return _created(cls, "from_openvino", "openvino", "openvino", places, {**arguments, "example": example})


def _created(
    cls: type[Estimator],
    constructor: str,
    framework: str,
    backend: str,
    settings: Mapping[str, Any],
    arguments: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
) -> Estimator:
    """Create an estimator of a built-in framework; its scikit-learn parameters are those of the constructor."""
    check_text("backend", backend)
    # A framework with a single backend offers no choice of it.
    chosen = {} if backend == framework else {"backend": backend}
    recipe = Recipe(constructor, {**settings, **arguments, **chosen, **(params or {})})
    return _build(cls, recipe, find(framework, backend), settings, arguments)


def _build(
    cls: type[Estimator],
    recipe: Recipe,
    backend: Backend[Any],
    settings: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> Estimator:
    rest = dict(settings)
    workers = _worker_count({name: rest.pop(name) for name in ("workers", "num_workers", "workers_per_node")})
    seed = rest.pop("seed", None)
    if backend.framework.metrics_in_spec:
        arguments = {**arguments, "metrics": rest.get("metrics")}
    spec = create_spec(backend, arguments, also=[*settings, *(["backend"] if "backend" in recipe.params else [])])
    setup = Setup.create(backend, spec, workers=workers, **rest)
    return cls(setup, Learned.nothing(setup, seed), recipe)


def _worker_count(counts: Mapping[str, int | None]) -> int:
    given = {name: check_count(name, count) for name, count in counts.items() if count is not None}
    if len(given) > 1:
        raise ArgumentError("Give one of workers=, num_workers= and workers_per_node=, not several.")
    nodes = current().nodes if "workers_per_node" in given else 1
    return next(iter(given.values()), 1) * nodes
