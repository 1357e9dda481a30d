"""Peers for torch_backends.py and large_models.py: hand-written programs with DDP, Horovod, Ray Train or Spark alone.

All train the same network on the same rows with the same steps. Imported by name in many processes, so it imports
nothing heavy but torch.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

FEATURES, CLASSES, SEED, RATE, MOMENTUM = 64, 2, 0, 0.05, 0.9
WORLD = 2
Array = np.ndarray[Any, Any]
Timed = tuple[list[float], float]
"""Rows/s of each epoch, and the last loss."""


class Mlp(nn.Module):
    """A network that is small unless it is given other widths, so that overhead is visible."""

    def __init__(self, widths: Sequence[int] = (128, 64)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise((FEATURES, *widths)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def make_rows(rows: int) -> tuple[Array, Array]:
    """Return random rows, labelled by the side of a plane."""
    x = np.random.default_rng(SEED).standard_normal((rows, FEATURES), dtype="f4")
    return x, (x[:, : FEATURES // 2].sum(axis=1) > 0).astype("i8")


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)


def index_batches(
    x: torch.Tensor, y: torch.Tensor, epoch: int, batch_size: int, rank: int, world: int = WORLD
) -> Iterator[Any]:
    """Yield this rank's part of every batch of a shuffled epoch, indexed at once, without a DataLoader."""
    order = torch.from_numpy(np.random.default_rng([SEED, epoch]).permutation(len(x)))
    for start in range(0, len(x), batch_size):
        index = order[start : start + batch_size]
        mine = index.tensor_split(world)[rank]
        yield x[mine], y[mine]


def train_epoch(model: Any, optimizer: Any, batches: Iterator[Any]) -> float:
    """Train one epoch and return the mean loss; reads the loss of each step, as a progress display would."""
    loss_of = nn.CrossEntropyLoss()
    total, rows = 0.0, 0
    for features, target in batches:
        optimizer.zero_grad()
        loss = loss_of(model(features), target)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
        rows += len(target)
    return total / rows


# Steady training on this machine -------------------------------------------------------------------------------------


def timed_epochs(
    model: Any, optimizer: Any, folder: str, epochs: int, batch_size: int, rank: int, out: Any, world: int = WORLD
) -> None:
    """Train on the arrays in a folder; rank 0 sends each epoch's seconds and the last loss."""
    x, y = (torch.from_numpy(np.load(f"{folder}/{name}.npy")) for name in "xy")
    seconds, loss = [], 0.0
    for epoch in range(epochs):
        start = time.perf_counter()
        loss = train_epoch(model, optimizer, index_batches(x, y, epoch, batch_size, rank, world))
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        out.put((seconds, loss))


def ddp_rank(
    rank: int,
    port: int,
    folder: str,
    epochs: int,
    batch_size: int,
    threads: int,
    out: Any,
    world: int = WORLD,
    widths: Sequence[int] = (128, 64),
    synchronized: bool = True,
) -> None:
    """Train with DDP, or without `synchronized` a model per rank, which shows what the cores can do."""
    import torch.distributed as dist

    torch.set_num_threads(threads)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    torch.manual_seed(SEED)
    model: nn.Module = Mlp(widths)
    if synchronized:
        model = nn.parallel.DistributedDataParallel(model)
    timed_epochs(model, sgd(model), folder, epochs, batch_size, rank, out, world)
    dist.destroy_process_group()


def horovod_rank(rank: int, port: int, folder: str, epochs: int, batch_size: int, threads: int, out: Any) -> None:
    os.environ |= {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_HOSTNAME": "127.0.0.1",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(WORLD),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(WORLD),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }
    import horovod.torch as hvd

    torch.set_num_threads(threads)
    hvd.init()
    torch.manual_seed(SEED)
    model = Mlp()
    optimizer = hvd.DistributedOptimizer(sgd(model), named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    timed_epochs(model, optimizer, folder, epochs, batch_size, rank, out)
    hvd.shutdown()


def _spawn(
    target: Any, port: int, folder: str, epochs: int, batch_size: int, threads: int, *more: Any, world: int = WORLD
) -> tuple[list[float], float]:
    """Run the ranks; return the rows/s of each epoch and the last loss."""
    import torch.multiprocessing as mp

    out = mp.get_context("spawn").SimpleQueue()
    mp.spawn(target, args=(port, folder, epochs, batch_size, threads, out, *more), nprocs=world)
    seconds, loss = out.get()
    rows = len(np.load(f"{folder}/y.npy", mmap_mode="r"))
    return [rows / spent for spent in seconds], loss


def ddp_by_hand(
    folder: str,
    epochs: int,
    batch_size: int,
    threads: int,
    world: int = WORLD,
    widths: Sequence[int] = (128, 64),
    synchronized: bool = True,
) -> Timed:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    more = (world, widths, synchronized)
    return _spawn(ddp_rank, store.port, folder, epochs, batch_size, threads, *more, world=world)


def horovod_by_hand(folder: str, epochs: int, batch_size: int, threads: int) -> Timed:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    try:
        server.init(get_host_assignments(parse_hosts(f"127.0.0.1:{WORLD}"), WORLD))
        return _spawn(horovod_rank, port, folder, epochs, batch_size, threads)
    finally:
        server.stop()


# From a DataFrame to a trained model ---------------------------------------------------------------------------------


def ray_train_rank(config: dict[str, int]) -> Any:
    import ray.train
    from ray.train.torch import prepare_model

    torch.manual_seed(SEED)
    model = prepare_model(Mlp())
    optimizer = sgd(model)
    shard = ray.train.get_dataset_shard("train")
    for epoch in range(config["epochs"]):
        # The rows are not shuffled, which would only make this side slower.
        batches = shard.iter_torch_batches(batch_size=config["batch_size"] // WORLD)
        loss = train_epoch(model, optimizer, ((batch["features"], batch["label"]) for batch in batches))
        ray.train.report({"epoch": epoch, "loss": loss})
    # Ray Train does not return tensors.
    return {name: tensor.numpy() for name, tensor in model.module.state_dict().items()}


def ray_train(dataset: Any, epochs: int, batch_size: int) -> nn.Module:
    """Train with Ray Train's TorchTrainer on a Ray Dataset."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            ray_train_rank,
            train_loop_config={"epochs": epochs, "batch_size": batch_size},
            scaling_config=ScalingConfig(num_workers=WORLD),
            run_config=RunConfig(storage_path=folder),
            datasets={"train": dataset},
        )
        return _loaded(trainer.fit().return_value)


def torch_distributor_rank(folder: str, epochs: int, batch_size: int) -> Any:
    import pyarrow.parquet as pq
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    table = pq.read_table(folder)
    values = table.column("features").combine_chunks().flatten().to_numpy()
    x = torch.from_numpy(values.reshape(-1, FEATURES).copy())
    y = torch.from_numpy(table.column("label").to_numpy().copy())
    torch.manual_seed(SEED)
    model = nn.parallel.DistributedDataParallel(Mlp())
    optimizer = sgd(model)
    for epoch in range(epochs):
        train_epoch(model, optimizer, index_batches(x, y, epoch, batch_size, dist.get_rank()))
    dist.destroy_process_group()
    return model.module.state_dict()


def torch_distributor(frame: Any, epochs: int, batch_size: int, local_mode: bool) -> nn.Module:
    """Train with Spark's TorchDistributor, which reads the rows from Parquet files."""
    from pyspark.ml.torch.distributor import TorchDistributor

    with tempfile.TemporaryDirectory() as folder:
        frame.write.mode("overwrite").parquet(f"{folder}/rows")
        distributor = TorchDistributor(num_processes=WORLD, local_mode=local_mode, use_gpu=False)
        return _loaded(distributor.run(torch_distributor_rank, f"{folder}/rows", epochs, batch_size))


def _loaded(state: Any) -> nn.Module:
    model = Mlp()
    model.load_state_dict({name: torch.tensor(np.asarray(value)) for name, value in state.items()})
    return model


# Predictions as a column ---------------------------------------------------------------------------------------------


def spark_predict(frame: Any, model: nn.Module, batch_size: int) -> Any:
    """Add a lazy column of predictions with Spark's predict_batch_udf."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    state = model.state_dict()

    def make_predict() -> Any:
        torch.set_num_threads(1)
        net = _loaded(state).eval()

        def predict(features: Array) -> Array:
            with torch.inference_mode():
                return net(torch.from_numpy(features)).numpy()

        return predict

    udf = predict_batch_udf(
        make_predict, return_type=ArrayType(FloatType()), batch_size=batch_size, input_tensor_shapes=[[FEATURES]]
    )
    return frame.withColumn("prediction", udf("features"))


class RayPredictor:
    """The class for `map_batches`, whose actors each load the model once."""

    def __init__(self, state: Any) -> None:
        torch.set_num_threads(1)
        self.model = _loaded(state).eval()

    def __call__(self, batch: dict[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            prediction = self.model(torch.as_tensor(batch["features"])).numpy()
        return {**batch, "prediction": prediction}


def ray_predict(dataset: Any, model: nn.Module, batch_size: int) -> Any:
    """Add a lazy column of predictions with Ray Data's map_batches over two actors."""
    return dataset.map_batches(
        RayPredictor, fn_constructor_args=(model.state_dict(),), batch_size=batch_size, concurrency=WORLD
    )
