"""Peers for keras_backends.py: careful hand-written programs with Keras, and TensorFlow or Horovod, alone.

Each is a separate program: `python keras_peers.py multiworker|horovod|single …` runs one process of it, which trains
with `model.fit` on its own part of the rows and prints the rows/s of each epoch as JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from programs import HOST, Timed, answers_of, free_ports, report, with_threads

FEATURES, CLASSES, SEED, RATE, MOMENTUM = 64, 2, 0, 0.05, 0.9
WORLD = 2
Array = np.ndarray[Any, Any]


def make_rows(rows: int) -> tuple[Array, Array]:
    """Return random rows, labelled by the side of a plane."""
    x = np.random.default_rng(SEED).standard_normal((rows, FEATURES), dtype="f4")
    return x, (x[:, : FEATURES // 2].sum(axis=1) > 0).astype("i8")


def network() -> Any:
    """Create a small network, so that overhead is visible."""
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )


def compiled(optimizer: Any, jit_compile: bool | str = "auto") -> Any:
    import keras

    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=jit_compile)
    return model


def model_creator(config: dict[str, Any]) -> Any:
    """Create the model for Orca, compiled as for one process."""
    import keras

    return compiled(keras.optimizers.SGD(RATE, momentum=MOMENTUM))


# One process of a hand-written program -------------------------------------------------------------------------------


def use_threads(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # as Orca does; collectives need more than one


def summed_sgd(mean: Callable[[Any], Any]) -> Any:
    """Create an optimizer that applies the mean of the processes' gradients, sent as one vector."""
    import keras
    import tensorflow as tf

    class Summed(keras.optimizers.SGD):
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            flat = mean(tf.concat([tf.reshape(grad, [-1]) for grad in grads], 0))
            parts = tf.split(flat, [int(np.prod(grad.shape)) for grad in grads])
            shaped = [tf.reshape(part, grad.shape) for part, grad in zip(parts, grads, strict=True)]
            return super().apply(shaped, trainable_variables)

    return Summed(RATE, momentum=MOMENTUM)


def join_tensorflow(rank: int, addresses: list[str]) -> Callable[[Any], Any]:
    """Join a TensorFlow cluster; return a function that averages a vector over it."""
    import tensorflow as tf
    from tensorflow.core.protobuf import tensorflow_server_pb2
    from tensorflow.python.eager import context as eager

    handle = eager.context()
    handle.configure_collective_ops(
        collective_leader="/job:worker/replica:0/task:0",
        scoped_allocator_enabled_ops=("CollectiveReduce",),
        device_filters=(f"/job:worker/task:{rank}",),
    )
    handle.enable_collective_ops(
        tensorflow_server_pb2.ServerDef(
            cluster=tf.train.ClusterSpec({"worker": addresses}).as_cluster_def(),
            job_name="worker",
            task_index=rank,
            protocol="grpc",
            default_session_config=handle.config,
        )
    )

    def mean(flat: Any) -> Any:
        total = tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=len(addresses),
            group_key=1,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            communication_hint="RING",
        )
        return total / len(addresses)

    return mean


def join_horovod(rank: int, port: int) -> Callable[[Any], Any]:
    """Join a Horovod group; return a function that averages a vector over it."""
    os.environ |= {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_HOSTNAME": HOST,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(WORLD),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(WORLD),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
    }
    import horovod.tensorflow as hvd

    hvd.init()
    return lambda flat: hvd.allreduce(flat, op=hvd.Average, name="gradients")


def timed_fit(model: Any, x: Array, y: Array, epochs: int, batch_size: int) -> tuple[list[float], float]:
    """Return the seconds of each epoch of `model.fit`, and the last loss."""
    import keras

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []
            self._start = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self._start = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self._start)

    clock = Clock()
    history = model.fit(x, y, batch_size=batch_size, epochs=epochs, callbacks=[clock], verbose=0)
    return clock.seconds, history.history["loss"][-1]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("multiworker", "horovod", "single"))
    parser.add_argument("--folder", required=True, help="where x.npy and y.npy are")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True, help="rows of a step over all processes")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ports", type=int, nargs="*", default=[], help="of the processes, or of the rendezvous")
    options = parser.parse_args(arguments)
    import keras

    use_threads(options.threads)
    x, y = (np.load(f"{options.folder}/{name}.npy") for name in "xy")
    world, jit_compile, mean = 1, "auto", None
    if options.kind != "single":
        # XLA supports neither TensorFlow's collectives nor Horovod.
        world, jit_compile = WORLD, False
        if options.kind == "multiworker":
            mean = join_tensorflow(options.rank, [f"{HOST}:{port}" for port in options.ports])
        else:
            mean = join_horovod(options.rank, options.ports[0])
    keras.utils.set_random_seed(SEED)
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM) if mean is None else summed_sgd(mean)
    part = len(x) // world  # the same number of steps in every process
    mine = slice(options.rank * part, (options.rank + 1) * part)
    model = compiled(optimizer, jit_compile)
    seconds, loss = timed_fit(model, x[mine].copy(), y[mine].copy(), options.epochs, options.batch_size // world)
    report([part * world / spent for spent in seconds], float(loss))
    if world > 1:
        # A process that leaves first would break the connections of the other.
        sys.stdin.readline()
        os._exit(0)


# The whole programs, as the benchmark calls them ---------------------------------------------------------------------


def multiworker_by_hand(folder: str, epochs: int, batch_size: int, threads: int) -> Timed:
    return _run("multiworker", WORLD, folder, epochs, batch_size, threads, free_ports(WORLD))


def horovod_by_hand(folder: str, epochs: int, batch_size: int, threads: int) -> Timed:
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    try:
        server.init(get_host_assignments(parse_hosts(f"{HOST}:{WORLD}"), WORLD))
        return _run("horovod", WORLD, folder, epochs, batch_size, threads, [port])
    finally:
        server.stop()


def single_by_hand(folder: str, epochs: int, batch_size: int, threads: int) -> Timed:
    return _run("single", 1, folder, epochs, batch_size, threads, [])


def _run(kind: str, world: int, folder: str, epochs: int, batch_size: int, threads: int, ports: list[int]) -> Timed:
    """Run the processes; return the results of the first."""
    common = [sys.executable, __file__, kind, f"--folder={folder}", f"--epochs={epochs}"]
    common += [f"--batch-size={batch_size}", f"--threads={threads}"]
    tail = ["--ports", *map(str, ports)] if ports else []
    commands = [[*common, f"--rank={rank}", *tail] for rank in range(world)]
    answers = answers_of(commands, [with_threads(threads)] * world, world)
    return answers[0]["rows_per_s"], answers[0]["loss"]


if __name__ == "__main__" and len(sys.argv) > 1:
    main(sys.argv[1:])
