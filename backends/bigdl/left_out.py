"""Methods of BigDL's layers that are not supported: calling one says what to use instead."""

from __future__ import annotations

from typing import Any, NoReturn

from orca.errors import ArgumentError


def _refuse(name: str, reason: str) -> NoReturn:
    raise ArgumentError(f"{name}() is not supported: {reason}.")


class LeftOut:
    """Methods that every layer has in BigDL, and that raise here."""

    def quantize(self) -> NoReturn:
        """Raise: estimators quantize models."""
        _refuse("quantize", "train with Estimator.from_bigdl, then use est.quantize")

    def save_caffe(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: Caffe's files are not written."""
        _refuse("save_caffe", "use saveModel, or export the estimator to ONNX")

    def save_tensorflow(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: TensorFlow's files are not written."""
        _refuse("save_tensorflow", "use saveModel, or export the estimator to ONNX")

    def predict_image(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: there is no ImageFrame."""
        _refuse("predict_image", "read images with read_images, and predict from them")


class NotLoaded:
    """Loaders that `Model` has in BigDL, and that raise here."""

    @staticmethod
    def load_caffe(*args: Any, **kwargs: Any) -> NoReturn:
        """Raise: Caffe's files are not read."""
        _refuse("load_caffe", "convert the model to ONNX, and run it with Estimator.from_openvino")

    @staticmethod
    def load_caffe_model(*args: Any, **kwargs: Any) -> NoReturn:
        """Raise: Caffe's files are not read."""
        _refuse("load_caffe_model", "convert the model to ONNX, and run it with Estimator.from_openvino")

    @staticmethod
    def load_torch(*args: Any, **kwargs: Any) -> NoReturn:
        """Raise: this loads files of Torch for Lua."""
        _refuse("load_torch", "it reads files of Torch for Lua; PyTorch models train with Estimator.from_torch")

    @staticmethod
    def load_keras(*args: Any, **kwargs: Any) -> NoReturn:
        """Raise: this loads files of Keras 1.2."""
        _refuse("load_keras", "it reads files of Keras 1.2; Keras models train with Estimator.from_keras")
