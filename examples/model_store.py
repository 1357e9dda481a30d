"""A MobileNetV2 in a model store: put, get, predicted on a runtime, trained further on stored records.

Run ``python examples/model_store.py`` where Orca is installed with ``[store,openvino,tensorflow]``. ``--runtime``
chooses where predictions run. The weights are random: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from orca import Store, init_orca_context
from orca.store import virtualobj

LABELS = ["daisy", "dandelion", "roses", "sunflowers", "tulips"]


def flower_model(size: int) -> tf.keras.Model:
    """Return a small MobileNetV2 with a new output layer."""
    mobile_net = tf.keras.applications.MobileNetV2(
        input_shape=(size, size, 3), include_top=False, weights=None, alpha=0.35
    )
    mobile_net.trainable = False
    model = tf.keras.Sequential([
        mobile_net,
        tf.keras.layers.GlobalAveragePooling2D(),
        tf.keras.layers.Dense(len(LABELS)),
    ])  # fmt: skip
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


@virtualobj
def photos(count: str = "16", size: str = "192") -> tf.data.Dataset:
    """Return images with labels; a virtual dataset runs this function each time it is read."""
    import numpy as np
    import tensorflow as tf

    numbers = np.random.default_rng(0)
    images = numbers.random((int(count), int(size), int(size), 3), "f4")
    return tf.data.Dataset.from_tensor_slices((images, numbers.integers(0, 5, int(count))))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", default="local", choices=["local", "ray", "spark"])
    parser.add_argument("--store", default="", help="folder of the store; default: a temporary one")
    parser.add_argument("--size", type=int, default=192, help="height and width of images")
    options = parser.parse_args()
    om = Store(options.store or tempfile.mkdtemp(prefix="orca-example-"))

    model = flower_model(options.size)
    image = np.random.default_rng(1).integers(0, 255, (options.size, options.size, 3), "u1")
    # Random weights shrink the signal from layer to layer: scale the last one, so that outputs are not almost 0.
    features = np.asarray(model.layers[1](model.layers[0](image[None].astype("f4"), training=False)))
    kernel, bias = model.layers[2].get_weights()
    model.layers[2].set_weights([kernel / np.linalg.norm(features), bias])
    version = om.models.put(model, "tfkeras-flower", tag="production")
    print(f"stored {version}: {version.signature.inputs[0].shape} -> {version.signature.outputs[0].shape}")

    expected = model.predict(np.array([image]), verbose=0)
    restored = om.models.get("tfkeras-flower")
    difference = np.abs(restored.predict(np.array([image]), verbose=0) - expected).max()
    print(f"get: largest difference {difference:.1e}")

    with init_orca_context(runtime=options.runtime, cores=2):
        result = om.runtime.model("tfkeras-flower").predict(np.array([image]))
        largest = max(difference, np.abs(np.asarray(result) - expected).max())
        print(f"runtime {options.runtime}: {LABELS[int(np.argmax(result))]}, largest difference {largest:.1e}")

        om.datasets.put(photos, "photos", replace=True)
        trained = om.runtime.model("tfkeras-flower").fit(f"photos{{size={options.size}}}", batch_size=8).get()
        print(f"trained {trained} from {trained.manifest['parent']} on {trained.manifest['data']}")
    return 0 if largest < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
