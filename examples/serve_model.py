"""Serve a stored model and ask it over HTTP in four ways; all agree with the model itself.

Run ``python examples/serve_model.py`` where Orca is installed with ``[serve,torch]`` and ``requests``. The network is
small and has random weights: nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile

import numpy as np
import requests
import torch
from torch import nn

from orca import Store

SIZE = 32


class Net(nn.Module):
    """A small convolutional network for images with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.permute(0, 3, 1, 2) / 255)


def main() -> int:
    model = Net().eval()
    image = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3)).astype("float32")
    expected = model(torch.from_numpy(image[None])).detach().numpy()

    om = Store(tempfile.mkdtemp(prefix="orca-example-"))
    om.models.put(model, "flowers/net", example=np.array([image]), tag="production")
    command = [sys.executable, "-m", "orca.cli", "serve", om.path, "--model", "flowers/net@production", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        print(line.strip())
        match = re.search(r"http://\S+", line)
        assert match is not None, "the server did not start"
        results = ask(match[0], image)
    finally:
        server.terminate()
        server.wait(60)
    for protocol, result in results.items():
        print(f"{protocol:<28} largest difference {np.abs(result - expected).max():.1e}")
    return 0 if all(np.allclose(result, expected, atol=1e-5) for result in results.values()) else 1


def ask(url: str, image: np.ndarray) -> dict[str, np.ndarray]:
    """Return the predictions of an image, by protocol."""
    body = {"columns": ["x"], "data": [{"x": image.flatten().tolist()}], "shape": list(image.shape)}
    rest = requests.put(f"{url}/api/v1/model/flowers/net/predict", json=body, timeout=30).json()["result"]

    infer = f"{url}/v2/models/flowers/net/infer"
    (port,) = requests.get(infer.removesuffix("/infer"), timeout=30).json()["inputs"]
    tensor = {"name": port["name"], "shape": [1, *image.shape], "datatype": "FP32", "data": image.ravel().tolist()}
    v2 = requests.post(infer, json={"inputs": [tensor]}, timeout=30).json()["outputs"][0]["data"]

    raw = image.tobytes()
    del tensor["data"]
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    binary = requests.post(infer, data=head + raw, headers=headers, timeout=30).json()["outputs"][0]["data"]

    instances = {"instances": [image.tolist()]}
    predictions = requests.post(f"{url}/v1/models/flowers/net:predict", json=instances, timeout=30).json()
    return {
        "omega|ml": np.array(rest),
        "Open Inference Protocol": np.array([v2]),
        "Open Inference, binary": np.array([binary]),
        "TensorFlow Serving": np.array(predictions["predictions"]),
    }


if __name__ == "__main__":
    sys.exit(main())
