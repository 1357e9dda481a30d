"""A headless Chromium that can reach this machine only, and screenshots of the server's pages for the documentation.

``python -m tests.serving.browser docs/images`` writes the screenshots.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def path() -> str | None:
    """Return the path of Chromium, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run a browser within a context."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def flower() -> bytes:
    """Return the picture of a flower, as PNG."""
    y = np.mgrid[0:384, 0:384][0] / 384
    sky = np.stack([120 + 80 * y, 170 + 50 * y, 225 - 60 * y], -1).astype("u1")
    image = Image.fromarray(sky)
    draw = ImageDraw.Draw(image)
    draw.line([(192, 200), (205, 384)], fill=(52, 120, 60), width=14)
    draw.ellipse([205, 290, 290, 330], fill=(62, 140, 72))
    for angle in np.linspace(0, 2 * np.pi, 9)[:-1]:
        cx, cy = 192 + 78 * np.cos(angle), 160 + 78 * np.sin(angle)
        draw.ellipse([cx - 46, cy - 46, cx + 46, cy + 46], fill=(245, 245, 250), outline=(214, 210, 230), width=3)
    draw.ellipse([142, 110, 242, 210], fill=(245, 190, 40))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def take_screenshots(folder: Path) -> None:
    """Write screenshots of both pages."""
    from orca.store import Store
    from tests.serving import models
    from tests.serving.servers import serving

    with tempfile.TemporaryDirectory() as place:
        om = Store(Path(place) / "store")
        om.models.put(models.image(), "flowers/colors", tag="production")
        om.models.put(models.linear(1), "linear")
        (Path(place) / "flower.png").write_bytes(flower())
        with serving(om.path) as server, chromium() as browser:
            for scheme, address, name in (("light", "/", "serve-try.png"), ("dark", "/docs", "serve-docs.png")):
                page = browser.new_context(color_scheme=scheme, viewport={"width": 1100, "height": 700}).new_page()
                page.goto(server.url + address)
                if address == "/":
                    page.set_input_files("#inputs input", Path(place) / "flower.png")
                    page.click("#predict")
                    page.wait_for_selector(".bars li")
                else:
                    page.click(".operation summary >> nth=0")
                page.screenshot(path=folder / name)


if __name__ == "__main__":
    take_screenshots(Path(sys.argv[1]))
