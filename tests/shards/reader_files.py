"""Files for the tests of readers, and the comparison of what was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def put(folder: Path, **texts: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name.replace("_", ".", 1)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def ten_files(folder: Path) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frames = []
    for number in range(10):
        frames.append(
            pd.DataFrame(
                {
                    "row": np.arange(number * 100, number * 100 + 100),
                    "value": rng.normal(size=100).round(4),
                    "name": rng.choice(["ann", 'b "x" b', "c,d"], 100),
                    "gap": np.where(rng.random(100) < 0.2, np.nan, rng.normal(size=100).round(3)),
                }
            )
        )
        frames[-1].to_csv(folder / f"part-{number}.csv", index=False)
    return pd.concat(frames, ignore_index=True)


def same(result, expected):
    pd.testing.assert_frame_equal(result.reset_index(drop=True), expected.reset_index(drop=True))


def image_file(path: Path, height: int, width: int, value: int, mode: str = "RGB") -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    channels = (3,) if mode == "RGB" else ()
    Image.fromarray(np.full((height, width, *channels), value, "uint8")).save(path)
