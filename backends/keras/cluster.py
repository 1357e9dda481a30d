"""TensorFlow in a rank's process: its threads, its context (recreated for each gang) and its collectives."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context as eager

from orca.backends.worker.inference import models

if TYPE_CHECKING:
    from orca.launch.rank import RankContext

_TRIES = 5
PATIENCE = 1800.0
"""Seconds that a collective waits for a slow rank; the gang detects dead ones."""


def prepare(context: RankContext, devices: int = 1) -> None:
    """Configure TensorFlow in this process with the rank's threads and `devices` logical CPUs, once per gang."""
    context.once("tensorflow", lambda: _reset(context.place.threads, devices))


def _reset(threads: int, devices: int = 1) -> None:
    # TensorFlow accepts threads, devices and cluster only before its first operation. A process that was in another
    # gang starts over, and none of its earlier TensorFlow objects may be used again.
    if eager.context_safe() is not None:
        models.forget()
        keras.utils.clear_session()
        eager._reset_context()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, devices))
    if devices > 1:
        processor = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * devices)


def join(context: RankContext) -> None:
    """Join the gang's TensorFlow cluster, for collectives."""
    context.once("tensorflow.cluster", lambda: _join(context))


def _join(context: RankContext) -> None:
    place = context.place
    problem: str | None = None
    for _ in range(_TRIES):
        # TensorFlow opens the port itself; if another process takes it first, all ranks try other ports.
        addresses = context.allgather(f"{place.address}:{_free_port(place.address)}")
        try:
            _enable(addresses, place.rank)
            problem = None
        except (tf.errors.OpError, RuntimeError) as error:
            problem = str(error)
        problems = [report for report in context.allgather(problem) if report is not None]
        if not problems:
            return
        problem = problems[0]
        _reset(place.threads)
    raise RuntimeError(f"TensorFlow's server did not start on any of {_TRIES} ports: {problem}")


def _enable(addresses: list[str], rank: int) -> None:
    cluster: dict[str, Any] = {"worker": addresses}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    handle = eager.context()
    handle.configure_collective_ops(
        collective_leader="/job:worker/replica:0/task:0",
        scoped_allocator_enabled_ops=("CollectiveReduce",),
        device_filters=(f"/job:worker/task:{rank}",),
    )
    handle.enable_collective_ops(
        tensorflow_server_pb2.ServerDef(
            cluster=tf.train.ClusterSpec(cluster).as_cluster_def(),
            job_name="worker",
            task_index=rank,
            protocol="grpc",
            default_session_config=handle.config,
        )
    )
    # Otherwise TensorFlow opens the port with its first operation, when it is too late to try another one.
    handle.ensure_initialized()


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
