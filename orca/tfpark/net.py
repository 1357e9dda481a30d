"""`TFNet`: a graph that only predicts."""

from __future__ import annotations

import json
import os
from typing import Any

from orca.errors import DataError
from orca.estimator import Estimator
from orca.tfpark.dataset import TFDataset, check_known

_UNUSED = (
    "allow_non_differentiable_input",
    "generate_backward",
    "init_op",
    "mini_batch",
    "temp_dir",
    "tf_session_config",
)
"""Arguments of Analytics Zoo without an effect here."""


class TFNet:
    """A graph with fixed values; create one with a ``from_*`` method."""

    def __init__(self, estimator: Estimator) -> None:
        self._trainer = estimator
        self._layer: Any = None

    @property
    def estimator(self) -> Estimator:
        """The estimator that predicts."""
        return self._trainer

    @classmethod
    def from_session(cls, sess: Any, inputs: Any, outputs: Any, workers: int = 1, **unused: Any) -> TFNet:
        """Create a net of a session's graph, with the values that its variables have now."""
        check_known("from_session", unused, _UNUSED)
        chosen = [part[0] if isinstance(part, list | tuple) and len(part) == 1 else part for part in (inputs, outputs)]
        return cls(Estimator.from_graph(inputs=chosen[0], outputs=chosen[1], sess=sess, workers=workers))

    @classmethod
    def from_saved_model(
        cls, model_path: str, tag: str | None = None, signature: str | None = None, inputs: Any = None,
        outputs: Any = None, workers: int = 1, **unused: Any,
    ) -> TFNet:  # fmt: skip
        """Create a net of a SavedModel folder, by a signature or by the names of tensors."""
        del tag
        check_known("from_saved_model", unused, _UNUSED)
        chosen = {"inputs": inputs, "outputs": outputs, "signature": signature}
        return cls(Estimator.from_graph(model_path=model_path, workers=workers, **chosen))

    @classmethod
    def from_export_folder(cls, folder: str, workers: int = 1, **unused: Any) -> TFNet:
        """Create a net of a folder with ``frozen_inference_graph.pb`` and ``graph_meta.json``."""
        check_known("from_export_folder", unused, _UNUSED)
        if not os.path.isdir(folder):
            raise DataError(f"{folder} does not exist.")
        described = os.path.join(folder, "graph_meta.json")
        if not os.path.exists(described):
            raise DataError(f"{folder} has no graph_meta.json, which names the inputs and outputs of the graph.")
        with open(described, encoding="utf-8") as file:
            meta = json.load(file)
        names = {"inputs": meta["input_names"], "outputs": meta["output_names"]}
        chosen = {key: value[0] if len(value) == 1 else value for key, value in names.items()}
        path = os.path.join(folder, "frozen_inference_graph.pb")
        return cls(Estimator.from_graph(model_path=path, workers=workers, **chosen))

    def predict(self, x: Any, batch_per_thread: int | None = None, distributed: bool = True, **unused: Any) -> Any:
        """Return the outputs for rows, in the kind of the data; `x` is anything that `Estimator.predict` takes."""
        del distributed
        check_known("predict", unused, _UNUSED)
        if isinstance(x, TFDataset):
            return self._trainer.predict(x.data, batch_size=x.batch_per_thread, **x.columns)
        return self._trainer.predict(x, batch_size=batch_per_thread)

    forward = predict

    def as_layer(self) -> Any:
        """Return the net as a layer of BigDL's models, with the values that it has now; they stay as they are.

        ``Sequential().add(net)`` and ``net(node)`` do that by themselves.
        """
        if self._layer is None:
            from orca.backends.bigdl.graph_layer import GraphLayer
            from orca.backends.graph.pipelines.frozen import dtypes, frozen_part

            spec: Any = self._trainer.spec
            part = frozen_part(spec, self._trainer.get_model())
            self._layer = GraphLayer(part, dtypes(part))
        return self._layer

    def __call__(self, x: Any = None) -> Any:
        """Return a node of a graph of BigDL's layers."""
        return self.as_layer()(x)
