"""The pages of the server in a real browser, by mouse and by keyboard, without a request to any other host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import browser
from tests.serving.servers import Server

pytest.importorskip("playwright.sync_api")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(browser.path() is None, reason="Chromium is not installed")]

DROP = """([data]) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], "flower.png", { type: "image/png" }));
    const zone = document.querySelector(".drop");
    for (const kind of ["dragover", "drop"])
        zone.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.chromium() as running:
        yield running


@pytest.fixture
def page(chromium: Any, server: Server) -> Iterator[Any]:
    """A new page that records where its requests go and what it prints."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(15_000)
    requests: list[str] = []
    messages: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert requests
    assert all(url.startswith((f"{server.url}/", "blob:")) for url in requests), requests
    assert all("400" in message for message in messages), messages


def wait_for_input(page: Any, shape: str) -> None:
    page.locator("#inputs code", has_text=shape).wait_for()


def values(page: Any) -> list[float]:
    page.wait_for_selector("#result:not([hidden]) .bars li")
    return [float(text) for text in page.locator(".bars .value").all_inner_texts()]


def test_the_page_lists_models_and_versions_and_predicts_by_mouse(page: Any, server: Server):
    page.goto(server.url)
    page.wait_for_selector("#inputs > div")
    names = page.locator("#model option").all_inner_texts()
    assert {"flowers/image", "linear", "pair"} <= set(names)
    page.select_option("#model", "linear")
    wait_for_input(page, "[?, 64]")
    assert page.locator("#version option").all_inner_texts() == ["current (2)", "2", "1 · production"]
    page.select_option("#version", "1")
    wait_for_input(page, "[?, 64]")
    page.fill("textarea", f"[{[1.0] * 64}]")
    page.click("#predict")
    body = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [1.0] * 64}]}
    expected = server.ask("POST", "/v2/models/linear/versions/1/infer", body).json["outputs"][0]["data"]
    assert values(page) == pytest.approx(sorted(expected, reverse=True), rel=1e-4)
    assert "version 1" in page.inner_text(".facts")


def test_a_dropped_image_is_predicted(page: Any, server: Server):
    import base64

    page.goto(server.url)
    page.wait_for_selector("#inputs > div")
    page.select_option("#model", "flowers/image")
    page.wait_for_selector(".drop")
    page.evaluate(DROP, [base64.b64encode(browser.flower()).decode()])
    page.wait_for_selector(".drop img")
    page.click("#predict")
    assert len(values(page)) == 5


def test_the_page_works_by_keyboard_and_shows_errors_in_words(page: Any, server: Server):
    page.goto(server.url)
    page.wait_for_selector("#inputs > div")
    focused = "document.activeElement.id || document.activeElement.tagName"
    while page.evaluate(focused) != "model":
        page.keyboard.press("Tab")
    page.keyboard.type("linear")
    wait_for_input(page, "[?, 64]")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "input-0"
    page.keyboard.press("Control+a")
    page.keyboard.type("[[1, 2]]")
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "predict"
    page.keyboard.press("Enter")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error") == "The input 'x' takes [?, 64]; the request has [1, 2]."
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("nothing")
    page.keyboard.press("Control+Enter")
    page.locator("#error", has_text="not JSON").wait_for()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(f"[{[0.5] * 64}]")
    page.keyboard.press("Control+Enter")
    assert len(values(page)) == 10
    assert page.is_hidden("#error")


def test_the_documentation_page_lists_the_routes(page: Any, server: Server):
    page.goto(f"{server.url}/docs")
    page.wait_for_selector(".operation")
    paths = page.locator(".operation > summary code").all_inner_texts()
    assert {"/v2/models/{model}/infer", "/v1/models/{model}:predict", "/api/v1/model/{model}/predict"} <= set(paths)
    page.locator(".operation > summary").first.focus()
    page.keyboard.press("Enter")
    assert "curl -X POST" in page.locator(".operation[open] pre").first.inner_text()
