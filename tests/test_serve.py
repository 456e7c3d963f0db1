"""The translation server: interfaces of LibreTranslate and DeepL, batches, limits and faults."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request as HTTPRequest
from urllib.request import urlopen

import deepl
import httpx
import pytest
from commands import ENVIRONMENT
from forked import free_port
from libretranslatepy import LibreTranslateAPI
from starlette.testclient import TestClient

from seq2seq.config import DecodingConfig
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.decoding.translation import Options, Request, Translation
from seq2seq.decoding.translator import Translator
from seq2seq.errors import UserError
from seq2seq.serve import limits
from seq2seq.serve.app import Server
from seq2seq.serve.collector import BATCH_LINES, Collector
from seq2seq.serve.limits import Keys
from seq2seq.serve.models import Models

LINES = [f"the dog number {i}" for i in range(12)]
SENTENCES = "the dog. A man"
PAIR = {"source": "en", "target": "de"}


@pytest.fixture(scope="module")
def models(run: Path) -> Models:
    return Models([run])


@pytest.fixture(scope="module")
def translator(models: Models) -> Translator:
    [(collector, _)] = models.hops.values()
    return collector.translator


def server_of(
    models: Models, *, keys: Sequence[str] = (), rate: int = 0, max_characters: int = 100_000
) -> Server:
    return Server(models, Keys(keys, rate), max_characters)


def client(models: Models, **options: Any) -> TestClient:
    return TestClient(server_of(models, **options).app(), raise_server_exceptions=False)


def translate(http: TestClient, q: Any, **fields: Any) -> Any:
    response = http.post("/translate", json={"q": q, **PAIR, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_texts_are_translated_as_by_the_translator(models: Models, translator: Translator) -> None:
    http, expected = client(models), translator.translate(LINES)
    assert translate(http, LINES[0]) == {"translatedText": expected[0]}
    assert translate(http, LINES) == {"translatedText": expected}
    assert translate(http, f"{LINES[0]}\n\n{LINES[1]}")["translatedText"] == (
        f"{expected[0]}\n\n{expected[1]}"
    )
    form = http.post("/translate", data={"q": LINES[2], "source": "EN", "target": "DE"})
    assert form.json() == {"translatedText": expected[2]}
    fields = {"q": LINES[3], "format": "text", "api_key": "any", **PAIR}
    query = http.post("/translate", params=fields)  # as deep-translator
    assert query.json() == {"translatedText": expected[3]}
    body = {"q": LINES[2], **PAIR}  # replaces the query
    for both in (
        http.post("/translate", params=fields, data=body),
        http.post("/translate", params=fields, json=body),
    ):
        assert both.json() == {"translatedText": expected[2]}
    detected = translate(http, LINES[0], source="auto")
    assert detected["detectedLanguage"]["language"] == "en"


def test_sentences_are_translated_separately(models: Models, translator: Translator) -> None:
    http, text = client(models), SENTENCES
    [whole], [separate] = (translator.translate([text], paragraphs=x) for x in (False, True))
    assert whole != separate
    assert translate(http, text)["translatedText"] == separate
    for paragraphs, expected in ((False, whole), (True, separate)):
        answer = translate(http, text, options={"paragraphs": paragraphs})
        assert answer["translatedText"] == expected
    page = f"<p>{separate}</p>"
    assert translate(http, f"<p>{text}</p>", format="html")["translatedText"] == page
    assert translator.translate_document(f"<p>{text}</p>", format="html") == page


def test_alternatives_and_own_options(models: Models, translator: Translator) -> None:
    http = client(models)
    [found] = translator.translations([LINES[0]], nbest=3, alignment=True, tokens=True)
    answer = translate(http, LINES[0], alternatives=2)
    assert [answer["translatedText"], *answer["alternatives"]] == [x.text for x in found.nbest]
    both = translate(http, LINES[:2], alternatives=1)
    assert [len(x) for x in both["alternatives"]] == [1, 1]
    options = {"nbest": 3, "alignment": True, "tokens": True, "prefix": ""}
    [details] = translate(http, [LINES[0]], options=options)["details"]
    assert [x["text"] for x in details["nbest"]] == [x.text for x in found.nbest]
    assert details["score"] == pytest.approx(found.score)
    assert [tuple(link) for link in details["alignment"]] == list(found.alignment)
    assert len(details["tokens"]) == len(found.nbest[0].pieces) + 1
    answer = translate(http, LINES[0], options={"glossary": [["dog", "Katze"]], "prefix": "der"})
    assert answer["translatedText"].startswith("der") and "Katze" in answer["translatedText"]


def test_html_and_files(models: Models) -> None:
    http = client(models)
    deepl_request = {"text": ["a <b>b</b>", "c"], "target_lang": "DE", "tag_handling": "xml"}
    [first, _] = http.post("/v2/translate", json=deepl_request).json()["translations"]
    assert first["text"].count("<b>") == first["text"].count("</b>") == 1
    page = "<p>the <b>dog</b></p><script>x</script>"
    [answer] = translate(http, [page], format="html")["translatedText"]
    assert answer.endswith("<script>x</script>") and answer.count("<b>") == 1
    for name, content in (("a.html", page.encode()), ("a.txt", "the dog\nä".encode())):
        answer = http.post("/translate_file", files={"file": (name, content)}, data=PAIR)
        url = answer.json()["translatedFileUrl"]
        done = http.get(url)
        assert done.status_code == 200 and done.content
        assert name[1:] in done.headers["content-disposition"]
    file = {"file": ("a.txt", "\ufeffthe dog".encode())}
    url = http.post("/translate_file", files=file, data=PAIR).json()["translatedFileUrl"]
    assert http.get(url).content.startswith("\ufeff".encode())
    assert http.get("/download_file/../../etc/passwd").status_code == 404


@pytest.mark.parametrize("step", ["read_document", "write_document"])
def test_a_slow_document_is_ended_and_holds_up_nobody(
    models: Models, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, in_time = threading.Event(), list[bool]()

    def slow(*_: Any) -> None:
        in_time.append(ended.wait(20))

    async def answers() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(server_of(models).app())
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            file = {"file": ("a.html", b"<p>the dog</p>")}
            document = asyncio.ensure_future(http.post("/translate_file", files=file, data=PAIR))
            await asyncio.sleep(0.5)
            line = await http.post("/translate", json={"q": LINES[0], **PAIR})
            assert not document.done()
            late = await document
            ended.set()
            return line, late

    monkeypatch.setattr(limits, "MAX_SECONDS", 2)
    monkeypatch.setattr(f"seq2seq.serve.models.{step}", slow)
    line, late = asyncio.run(answers())
    assert line.status_code == 200
    assert late.status_code == 503 and "took too long" in late.json()["error"]
    assert in_time == [True]


def test_the_other_endpoints(models: Models) -> None:
    http = client(models, keys=["secret"])
    limits.REQUESTS.clear()
    assert http.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert http.get("/health").json() == {"status": "ok"}
    settings = http.get("/frontend/settings").json()
    assert settings["keyRequired"] and settings["language"]["target"]["code"] == "de"
    [found] = http.post("/detect", json={"q": "the dog", "api_key": "secret"}).json()
    assert found["language"] == "en" and 0 <= found["confidence"] <= 100
    assert "<html" in http.get("/").text
    spec = http.get("/spec").json()
    assert spec["openapi"] == "3.0.3"
    assert {"/translate", "/detect", "/translate_file", "/v2/translate"} <= spec["paths"].keys()
    for path, methods in spec["paths"].items():
        for method, described in methods.items():
            assert described["summary"] and described["responses"], (path, method)
            assert http.request(method, path).status_code != 404
    metrics = http.get("/metrics").text
    assert 'seq2seq_requests_total{path="/detect",status="200"} 1.0' in metrics


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "missing q parameter"),
        ({"q": [1], **PAIR}, "missing q parameter"),
        ({"q": "a", "target": "de"}, "missing source parameter"),
        ({"q": "a", "source": "xx", "target": "de"}, "xx is not supported"),
        ({"q": "a", "format": "docx", **PAIR}, "docx format is not supported"),
        ({"q": "a" * 101, **PAIR}, "request (101) exceeds text limit (100)"),
        ({"q": ["a"] * 21, **PAIR}, "request (21) exceeds batch limit (20)"),
        ({"q": "a", "alternatives": 99, **PAIR}, "(99) exceeds alternatives limit"),
        ({"q": "a", "alternatives": "x", **PAIR}, "alternatives must be a whole number"),
        ({"q": "a", "options": {"beams": 3}, **PAIR}, "options must be an object of"),
        ({"q": "a", "options": {"glossary": [["", "x"]]}, **PAIR}, "glossary needs"),
        ({"q": "a", "options": {}, "alternatives": 1, **PAIR}, "options exclude"),
        ({"q": "a", "options": {"prefix": "b" * 99, "paragraphs": True}, **PAIR}, "prefix"),
        ([1], "not a JSON object"),
    ],
)
def test_invalid_requests(
    models: Models, fields: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_TEXTS", 20)
    http = client(models, max_characters=100)
    response = http.post("/translate", json=fields)
    assert response.status_code == 400 and message in response.json()["error"]


@pytest.mark.parametrize("name", ["a.txt", "a.html"])
def test_files_obey_the_limit_of_characters(models: Models, name: str) -> None:
    http = client(models, max_characters=20)
    for size, status in ((20, 200), (21, 400)):
        file = {"file": (name, ("ä" * size).encode())}
        response = http.post("/translate_file", files=file, data=PAIR)
        assert response.status_code == status
    assert "request (21) exceeds text limit (20)" in response.json()["error"]


def test_malformed_bodies(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    http = client(models)
    headers = {"content-type": "application/json"}
    for body in (b'{"q":', b"\xff", b"[" * 900, rb'{"q": "\ud800"}'):
        response = http.post("/translate", content=body, headers=headers)
        assert response.status_code == 400 and "not a JSON object" in response.json()["error"]
    for content_type in ("application/json", "application/x-www-form-urlencoded", ""):
        empty = http.post("/translate", content=b"", headers={"content-type": content_type})
        assert empty.status_code == 400 and "missing q parameter" in empty.json()["error"]
    assert http.post("/translate", content=b"x" * 2000, headers=headers).status_code == 413
    chunks = (b"x" * 100 for _ in range(20))  # without a length
    assert http.post("/translate", content=chunks, headers=headers).status_code == 413
    assert http.get("/translate").status_code == 405
    wrong = http.post("/translate_file", files={"file": ("a.exe", b"x")}, data=PAIR)
    assert "file format .exe is not supported" in wrong.json()["error"]
    broken = http.post("/translate_file", files={"file": ("a.xml", b"<a>")}, data=PAIR)
    assert broken.status_code == 400 and "line 1" in broken.json()["error"]


def test_keys_and_rates(models: Models, tmp_path: Path) -> None:
    http = client(models, keys=["one", "two"], rate=2)
    expected = {"": [403], "three": [403], "one": [200, 200, 429], "two": [200]}
    for key, status in [(key, status) for key, own in expected.items() for status in own]:
        response = http.post("/translate", json={"q": "a", **PAIR, "api_key": key})
        assert response.status_code == status, key
        assert status != 429 or response.json() == {"error": "Slowdown: 2 per 1 minute"}
    header = {"authorization": "DeepL-Auth-Key two"}
    deepl_request = {"text": ["a"], "target_lang": "DE"}
    assert http.post("/v2/translate", json=deepl_request, headers=header).status_code == 200
    (tmp_path / "keys").write_text("\n")
    with pytest.raises(UserError, match="has no key"):
        Keys.load(tmp_path / "keys", 0)


def test_wrong_keys_are_limited_by_address(models: Models) -> None:
    http = client(models, keys=["one"], rate=2)
    url, fields = "/translate", {"q": "a", **PAIR}
    for _ in range(3):  # a client that has no key yet
        assert http.post(url, json=fields).status_code == 403
    for key, status in (("x", 403), ("y", 403), ("z", 429), ("one", 429)):
        assert http.post(url, json=fields | {"api_key": key}).status_code == status
    basic = {"authorization": "Basic YTpi"}  # of a proxy
    http = client(models, keys=["one"])
    assert http.post(url, json=fields | {"api_key": "one"}, headers=basic).status_code == 200


@pytest.mark.parametrize(
    "given",
    [{"headers": {"authorization": "DeepL-Auth-Key wrong"}}, {"params": {"api_key": "wrong"}}],
)
def test_a_wrong_key_is_refused_before_the_body_is_read(
    models: Models, given: dict[str, Any]
) -> None:
    read = list[bytes]()

    def body() -> Iterator[bytes]:
        read.append(b"{")
        yield read[0]

    def status(key: str) -> int:
        return client(models, keys=[key]).post("/translate", content=body(), **given).status_code

    assert status("one") == 403 and not read
    assert status("wrong") == 400 and read


def test_a_failure_is_logged_without_texts(
    models: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(lines: Sequence[Request], *_: Any) -> None:
        raise RuntimeError(f"cannot translate {lines[0].text}")

    [(collector, _)] = models.hops.values()
    monkeypatch.setattr(collector.translator, "process", fails)
    response = client(models).post("/translate", json={"q": "secret text", **PAIR})
    assert response.status_code == 500 and "secret" not in response.text
    [record] = [x for x in caplog.records if x.name.startswith("seq2seq")]
    assert "POST /translate: RuntimeError" in record.message and "in fails" in record.message
    assert "secret" not in caplog.text


def test_waiting_lines_are_limited(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_WAITING", 3)
    http = client(models)
    response = http.post("/translate", json={"q": ["a", "b", "c", "d"], **PAIR})
    assert response.status_code == 400 and "line limit (3)" in response.json()["error"]
    [(collector, _)] = models.hops.values()
    collector.num_waiting += 2
    response = http.post("/translate", json={"q": ["a", "b"], **PAIR})
    collector.num_waiting -= 2
    assert response.status_code == 429 and "Slowdown" in response.json()["error"]


def test_equal_lines_of_a_request_are_translated_once(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    monkeypatch.setattr(limits.BATCHES, "observe", batches.append)
    one, _, three = translate(client(models), [*LINES[:2], LINES[0]])["translatedText"]
    assert one == three and batches == [2]


def test_models_are_chosen_by_languages(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = Models([run])
    [hop] = models.hops.values()
    models.hops = {("fr", "en"): hop, ("en", "de"): hop}
    assert models.targets("fr") == ["en"] and models.route("fr", "de") == []
    models.pivot = "en"
    assert models.targets("fr") == ["en", "de"]
    http = client(models)
    twice = translate(http, LINES[0], source="fr")
    once = translate(http, LINES[0])["translatedText"]
    assert twice == translate(http, once)
    splits, process = list[bool](), Translator.process

    def recorded(self: Translator, lines: Any, options: Any, decoding: Any, *check: Any) -> Any:
        splits.append(decoding.paragraphs)
        return process(self, lines, options, decoding, *check)

    monkeypatch.setattr(Translator, "process", recorded)
    translate(http, SENTENCES, source="fr", options={"paragraphs": False})
    assert splits == [True, False]  # the pivot's sentences are always separate
    with pytest.raises(UserError, match="as another model does"):
        Models([run, run])
    with pytest.raises(UserError, match="--pivot xx"):
        Models([run], pivot="xx")


class Recording:
    """A translator that notes its batches, and takes a while."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.decoding = DecodingConfig()
        self.batches: list[list[str]] = []
        self.seconds = seconds

    def process(self, lines: Sequence[Request], *options: Any) -> list[Translation]:
        self.batches.append([line.text for line in lines])
        time.sleep(self.seconds)
        options[-1](len(lines))  # after a part of the search
        if any("fail" in line.text for line in lines):
            raise RuntimeError("search")
        return [Translation(line) for line in lines]


def collected(translator: Any, *requests: Sequence[str]) -> list[Any]:
    """Translate requests at once; return the results, or the error, of each."""

    async def run() -> list[Any]:
        collector = Collector(translator)
        jobs = [collector.translate([Request(x) for x in texts], Options()) for texts in requests]
        results = await asyncio.gather(*jobs, return_exceptions=True)
        assert collector.num_waiting == 0
        return results

    return asyncio.run(run())


def test_concurrent_requests_share_batches() -> None:
    translator = Recording()
    results = collected(translator, *([f"a{i}", f"b{i}"] for i in range(60)))
    for i, result in enumerate(results):
        assert [x.request.text for x in result] == [f"a{i}", f"b{i}"]
    assert len(translator.batches) < 6
    assert max(map(len, translator.batches)) > 50
    collected(alone := Recording(), [f"x{i}" for i in range(BATCH_LINES)])
    assert len(alone.batches) == 1


@pytest.mark.parametrize("large", [["x" * 50_000], ["x"] * 500], ids=["long", "many"])
def test_small_requests_do_not_wait_for_large_ones(large: list[str]) -> None:
    """Two large requests never take both of the batches at once."""

    async def run() -> None:
        translator: Any = Recording(0.2)
        collector = Collector(translator)

        def translate(texts: list[str]) -> Any:
            return collector.translate([Request(x) for x in texts], Options())

        jobs = [asyncio.create_task(translate(large)) for _ in range(2)]
        await asyncio.sleep(0.05)
        await translate(["short"])
        await asyncio.gather(*jobs)
        assert translator.batches[1] == ["short"]

    asyncio.run(run())


def test_a_failing_line_fails_alone() -> None:
    good, bad, other = collected(Recording(), ["a", "b"], ["fail"], ["c"])
    assert [x.error for x in good + other] == [None] * 3
    assert isinstance(bad, RuntimeError)


def test_a_cancelled_request_costs_nothing_more() -> None:
    async def run() -> None:
        translator: Any = Recording(0.1)
        collector = Collector(translator)
        lines = [Request(f"x{i}") for i in range(10 * BATCH_LINES)]
        work = asyncio.ensure_future(collector.translate(lines, Options()))
        await asyncio.sleep(0.05)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert collector.num_waiting == 0
        await asyncio.sleep(0.5)
        assert len(translator.batches) <= 2

    asyncio.run(run())


@contextmanager
def start(run: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield the server as a process, ready to answer, and its port."""
    port, deadline = free_port(), time.monotonic() + 60
    command = [sys.executable, "-m", "seq2seq", "serve", str(run), "--port", str(port), *options]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as server:
        # A soft limit that is too low for a thousand connections, which the server raises.
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (256, hard))
        try:
            while True:
                with suppress(OSError):
                    get(port, "/health")
                    break
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield server, port
        finally:
            server.kill()


@pytest.fixture(scope="module")
def process(run: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with start(run) as found:
        yield found


def get(port: int, path: str, fields: Any = None, timeout: float = 60) -> Any:
    data = None if fields is None else json.dumps(fields).encode()
    headers = {"content-type": "application/json"}
    with urlopen(
        HTTPRequest(f"http://127.0.0.1:{port}{path}", data, headers), timeout=timeout
    ) as answer:
        return json.loads(answer.read())


def test_official_clients(process: tuple[Any, int], translator: Translator) -> None:
    _, port = process
    expected = translator.translate(LINES[:2])
    url = f"http://127.0.0.1:{port}"
    libre = LibreTranslateAPI(url)
    assert libre.translate(LINES[0], "en", "de") == expected[0]
    assert libre.languages()[0]["code"] == "en" and libre.detect("the dog")[0]["language"] == "en"
    client = deepl.Translator("key", server_url=url)
    results = client.translate_text(LINES[:2], source_lang="EN", target_lang="DE")
    assert [result.text for result in results] == expected  # type: ignore[union-attr]


def test_bad_clients_do_no_harm(process: tuple[Any, int]) -> None:
    server, port = process
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(1_000)]
    for i, connection in enumerate(connections):
        if i % 3 == 0:  # slow: never ends its request
            connection.send(b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\n\r\n{")
        elif i % 3 == 1:
            connection.send(b"GET /hea")
            connection.shutdown(socket.SHUT_WR)
    with pytest.raises(urllib.error.URLError):  # 413, or a closed connection while it still sends
        get(port, "/translate", {"q": "x" * 100_000_000, **PAIR})
    gone = socket.create_connection(("127.0.0.1", port))
    body = json.dumps({"q": LINES * 50, **PAIR}).encode()
    gone.send(
        b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    gone.close()
    assert get(port, "/translate", {"q": LINES[0], **PAIR})["translatedText"]
    for connection in connections:
        connection.close()
    assert server.poll() is None


def test_sigterm_finishes_running_requests(run: Path) -> None:
    with start(run) as (server, port):
        answers: list[Any] = []
        fields = {"q": LINES * 40, **PAIR}
        thread = threading.Thread(target=lambda: answers.append(get(port, "/translate", fields)))
        thread.start()
        while "seq2seq_lines_total 480" not in metrics(port):
            time.sleep(0.01)
        server.send_signal(signal.SIGTERM)
        thread.join()
        assert len(answers[0]["translatedText"]) == 480
        assert server.wait(30) == 0
        assert "Traceback" not in server.communicate()[1]


def metrics(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8", "127.0.0.0/8"]])
def test_headers_of_named_proxies_are_trusted(run: Path, proxies: Sequence[str]) -> None:
    options = [f"--proxy={address}" for address in proxies]
    with start(run, "--rate", "2", *options) as (_, port), httpx.Client() as http:

        def status(client: str) -> int:
            headers = {"x-forwarded-for": f"1.1.1.1, {client}", "x-forwarded-proto": "https"}
            file, url = {"file": ("a.txt", b"dog")}, f"http://127.0.0.1:{port}/translate_file"
            response = http.post(url, files=file, data=PAIR, headers=headers)
            if response.status_code == 200:
                scheme = "https" if proxies else "http"
                assert response.json()["translatedFileUrl"].startswith(f"{scheme}://127.0.0.1")
            return response.status_code

        others = 200 if proxies else 429
        found = [status(client) for client in ("9.9.9.1", "9.9.9.1", "9.9.9.1", "9.9.9.2")]
        assert found == [200, 200, 429, others]


@pytest.mark.parametrize("change", ["kept", "deleted", "replaced"])
def test_a_glossary_uses_the_model_that_was_loaded(
    run: Path, tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy, q = tmp_path / "run", {"q": LINES[0], **PAIR}
    shutil.copytree(run, copy, symlinks=True)
    loaded, other = (copy / "best").resolve(), (copy / "last").resolve()
    assert loaded != other
    http = client(Models([copy]))
    (copy / "best").unlink()  # as a training that goes on
    (copy / "best").symlink_to(other)
    if change != "kept":
        shutil.rmtree(loaded)
    if change == "replaced":
        shutil.copytree(other, loaded)
    expected = Translator.load((run / "best").resolve()).translations(
        LINES[:1], glossary=Glossary([Term("Katze", "dog")]), scores=True
    )
    response = http.post("/translate", json=q | {"options": {"glossary": [["dog", "Katze"]]}})
    if change == "kept":
        assert response.json()["details"][0]["score"] == pytest.approx(expected[0].score)
    else:
        assert response.status_code == 503 and "restart the server" in response.json()["error"]
        assert f"{loaded} was changed or deleted while in use" in caplog.text
    assert http.post("/translate", json=q).status_code == 200


def test_a_used_port_is_an_error(run: Path, process: tuple[Any, int]) -> None:
    _, port = process
    command = [sys.executable, "-m", "seq2seq", "serve", str(run), "--port", str(port)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"cannot listen on 127.0.0.1, port {port}" in done.stderr


def test_many_clients_get_their_own_answers(
    process: tuple[Any, int], translator: Translator
) -> None:
    _, port = process
    expected = dict(zip(LINES, translator.translate(LINES), strict=True))

    def ask(i: int) -> bool:
        texts = [LINES[(i + k) % len(LINES)] for k in range(1 + i % 5)]
        answer = get(port, "/translate", {"q": texts, **PAIR})
        return bool(answer["translatedText"] == [expected[text] for text in texts])

    with ThreadPoolExecutor(40) as threads:
        assert all(threads.map(ask, range(200)))


def test_a_list_is_one_batch_and_a_long_one_does_not_hold_up_others() -> None:
    translator = Recording()
    collected(translator, [f"x{i}" for i in range(BATCH_LINES)])
    assert len(translator.batches) == 1
    translator = Recording()
    collected(translator, ["first"], ["second"], [f"x{i}" for i in range(1000)], ["short"])
    number = next(i for i, batch in enumerate(translator.batches) if "short" in batch)
    assert number < 4
