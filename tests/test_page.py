"""The page in headless Chromium, with the real server and exported without a server."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import axe_core_python
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from test_serve import LINES, start
from trained import FOR_BROWSERS, exported, trained_model

from seq2seq.config import Direction
from seq2seq.decoding.translator import Translator
from seq2seq.export import export_page

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="needs chromium and chromedriver",
)
AXE = Path(axe_core_python.__file__).with_name("axe.min.js")


@pytest.fixture
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1000,800"):
        options.add_argument(argument)
    options.binary_location = str(shutil.which("chromium"))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    yield driver
    driver.quit()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise TimeoutError


def element(browser: Any, name: str) -> Any:
    return browser.find_element(By.ID, name)


def text_of(browser: Any, name: str = "output") -> str:
    return str(element(browser, name).get_property("textContent"))


def test_a_session(browser: Any, run: Path) -> None:
    [first, second] = Translator.load(run).translate(LINES[:2])
    with start(run) as (server, port):
        browser.get(f"http://127.0.0.1:{port}/")
        wait_for(lambda: element(browser, "target").text)
        assert (element(browser, "source").text, element(browser, "target").text) == (
            "English",
            "German",
        )
        field = element(browser, "input")

        field.send_keys(LINES[1])  # as one types; the last answer wins
        wait_for(lambda: text_of(browser) == second)
        field.clear()
        field.send_keys(f"{LINES[0]}\n{LINES[1]}")
        wait_for(lambda: text_of(browser) == f"{first}\n{second}")

        words = browser.find_elements(By.CSS_SELECTOR, "#output .word")
        words[0].send_keys(Keys.ARROW_LEFT, *[Keys.ARROW_RIGHT] * (len(words) - 1))
        browser.switch_to.active_element.send_keys(Keys.ENTER)  # by keyboard
        choices = wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#others button"))
        assert text_of(browser, "source-words") == LINES[1]
        assert len(choices) > 1 and words[-1].get_attribute("aria-pressed") == "true"
        choice = choices[1].text
        choices[1].click()
        wait_for(lambda: text_of(browser) == f"{first}\n{choice}")

        field.clear()
        field.send_keys("مرحبا")
        wait_for(lambda: text_of(browser).strip())
        assert (
            browser.execute_script("return getComputedStyle(arguments[0]).direction", field)
            == "rtl"
        )

        browser.execute_script(AXE.read_text("utf-8"))
        for scheme in ("light", "dark"):
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            violations = browser.execute_async_script("axe.run().then(arguments[0])")["violations"]
            assert [(x["id"], x["nodes"][0]["html"]) for x in violations] == []
        browser.execute_script("arguments[0].value = 'the dog. '.repeat(1200); translate()", field)
        wait_for(lambda: len(text_of(browser)) > 2000)

        browser.set_window_size(360, 700)
        wide = "return document.documentElement.scrollWidth - innerWidth"
        assert browser.execute_script(wide) <= 0  # a phone needs no horizontal scrolling

        file = run.parent / "page.txt"
        file.write_text(LINES[0])
        element(browser, "file").send_keys(str(file))
        link = wait_for(lambda: element(browser, "download").get_attribute("href"))
        assert link.startswith(f"http://127.0.0.1:{port}/download_file/")
        messages = [x["message"] for x in browser.get_log("browser") if x["level"] == "SEVERE"]
        assert messages == []

        server.kill()
        field.clear()
        field.send_keys("the dog")
        wait_for(lambda: "does not answer" in text_of(browser, "error"))


def test_errors_are_shown(browser: Any, run: Path) -> None:
    with start(run, "--max-characters", "20") as (_, port):
        browser.get(f"http://127.0.0.1:{port}/")
        wait_for(lambda: element(browser, "target").text)
        element(browser, "input").send_keys("the dog " * 5)
        wait_for(lambda: "exceeds text limit (20)" in text_of(browser, "error"))
        element(browser, "input").clear()
        element(browser, "input").send_keys("the dog")
        wait_for(lambda: text_of(browser).strip() and not text_of(browser, "error"))


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve static files as `python -m http.server`; yield the address."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = partial(Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """Return the model directories of two directions."""
    folders = []
    for direction in (Direction("en", "de"), Direction("de", "ar")):
        loaded = trained_model(steps=400, **FOR_BROWSERS)
        data = replace(loaded.config.pairs, source=direction.source, target=direction.target)
        loaded = replace(loaded, config=replace(loaded.config, data=data))
        folder = tmp_path / direction.target
        folder.mkdir()
        exported(loaded, folder, "seq2seq")
        folders.append(folder / "model")
    return folders


def test_a_session_without_a_server(
    browser: Any, bergamot: Path, models: list[Path], tmp_path: Path
) -> None:
    page = tmp_path / "page"
    export_page(models, page, quantization="float32")
    shutil.rmtree(page / "package", ignore_errors=True)
    with served(page) as address:
        browser.get(address)
        wait_for(lambda: "run `npm pack" in text_of(browser, "error"))
        shutil.copytree(bergamot, page / "package")
        browser.get(address)
        wait_for(lambda: element(browser, "target").text)
        assert element(browser, "source").text.split() == ["English", "German"]
        texts = ["the dog sees a house", "a cat has the tree"]
        expected = Translator.load(models[0]).translate(texts, beam=1, max_extra=50)
        field = element(browser, "input")
        field.send_keys("\n\n".join(texts))
        wait_for(lambda: text_of(browser) == "\n\n".join(expected))

        file = tmp_path / "page.html"
        file.write_text(f"<p><b>{texts[0]}</b></p>")
        element(browser, "file").send_keys(str(file))
        link = wait_for(lambda: element(browser, "download"))
        wait_for(lambda: link.get_attribute("download") == "page.de.html")
        content = "fetch(arguments[0]).then((x) => x.text()).then(arguments[1])"
        saved = browser.execute_async_script(content, link.get_attribute("href"))
        assert saved.startswith("<p><b>") and saved.endswith("</b></p>")
        file = tmp_path / "page.bin"
        file.write_bytes(b"\xff\xfe")
        element(browser, "file").send_keys(str(file))
        wait_for(lambda: "page.bin is not a text in UTF-8" in text_of(browser, "error"))

        (page / "de-ar/model.bin").unlink()
        browser.find_element(By.CSS_SELECTOR, "#source option[value=de]").click()
        wait_for(lambda: "de-ar/model.bin cannot be loaded (404)" in text_of(browser, "error"))

        script = {"source": "delete window.WebAssembly"}
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)
        browser.get(address)
        wait_for(lambda: "has no WebAssembly" in text_of(browser, "error"))
    browser.get((page / "index.html").as_uri())
    wait_for(lambda: "python -m http.server" in text_of(browser, "error"))
