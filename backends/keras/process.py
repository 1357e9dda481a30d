"""TensorFlow in a rank's process: its threads, its devices and its context, which is recreated for each gang."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras
import tensorflow as tf
from tensorflow.python.eager import context as eager

from orca.backends.worker.inference import models

if TYPE_CHECKING:
    from orca.launch.rank import RankContext


def prepare(context: RankContext, devices: int = 1) -> None:
    """Configure TensorFlow in this process with the rank's threads and `devices` logical CPUs, once per gang."""
    context.once("tensorflow", lambda: _reset(context.place.threads, devices))


def _reset(threads: int, devices: int) -> None:
    # TensorFlow accepts threads and devices only before its first operation. A process that was in another gang starts
    # over, and none of its earlier TensorFlow objects may be used again.
    if eager.context_safe() is not None:
        models.forget()
        keras.utils.clear_session()
        eager._reset_context()
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, devices))
    if devices > 1:
        processor = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * devices)
