"""One rank of the Horovod check: reduce a tensor with the other ranks and compare."""

from __future__ import annotations

import sys


def reduce_with_torch() -> tuple[int, int, list[float]]:
    """Sum [rank + 1, 10] over the ranks with `horovod.torch`."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0, 10.0]), op=hvd.Sum)
    return hvd.rank(), hvd.size(), total.tolist()


def reduce_with_tensorflow() -> tuple[int, int, list[float]]:
    """Sum [rank + 1, 10] over the ranks with `horovod.tensorflow`."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    total = hvd.allreduce(tf.constant([hvd.rank() + 1.0, 10.0]), op=hvd.Sum)
    return hvd.rank(), hvd.size(), total.numpy().tolist()


def reduce_with_mxnet() -> tuple[int, int, list[float]]:
    """Sum [rank + 1, 10] over the ranks with `horovod.mxnet`."""
    import orca  # noqa: F401 - so that MXNet can be imported

    import horovod.mxnet as hvd  # isort: skip
    import mxnet as mx

    hvd.init()
    total = hvd.allreduce(mx.nd.array([hvd.rank() + 1.0, 10.0]), average=False)
    return hvd.rank(), hvd.size(), total.asnumpy().tolist()


def main() -> None:
    """Reduce once with the named framework; fail if there is one rank only or the sum is wrong."""
    framework = sys.argv[1]
    reduce = {"torch": reduce_with_torch, "tensorflow": reduce_with_tensorflow, "mxnet": reduce_with_mxnet}
    rank, size, total = reduce[framework]()
    expected = [size * (size + 1) / 2, 10.0 * size]
    print(f"{framework}: rank {rank} of {size} has {total}, expected {expected}", flush=True)
    if size < 2 or total != expected:
        sys.exit(1)


if __name__ == "__main__":
    main()
