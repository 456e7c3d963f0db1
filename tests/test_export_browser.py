"""Models exported for browsers translate what they did before, in Node and in Chromium."""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trained import FOR_BROWSERS, LINES, exported, own_translator, trained_model

from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.export import export_page
from seq2seq.formats.browser import VERSION

RUNNER = Path(__file__).parent / "bergamot.mjs"


def translated(bergamot: Path, folder: Path, precision: str) -> list[str]:
    """Return the translations of `LINES` by Bergamot in Node."""
    command = ["node", str(RUNNER), str(bergamot), str(folder), precision]
    run = subprocess.run(command, input=json.dumps(LINES), capture_output=True, text=True)
    assert not run.returncode, run.stderr
    found: list[str] = json.loads(run.stdout)
    return found


@pytest.mark.parametrize("variant", [{}, {"activation": "silu", "output_bias": True}], ids=str)
def test_every_token_is_the_same(bergamot: Path, tmp_path: Path, variant: dict[str, Any]) -> None:
    loaded = trained_model(**FOR_BROWSERS, **variant)
    folder = exported(loaded, tmp_path, "browser", quantization="float32")
    found = translated(bergamot, folder, "float32")
    # Bergamot ends a translation at twice the length of the longest source of a batch.
    greedy = own_translator(loaded).translations(
        LINES, beam=1, max_factor=2.0, max_extra=0, tokens=True
    )
    sources = loaded.tokenizer.source.encode(LINES)
    ended = [i for i, x in enumerate(greedy) if len(x.nbest[0].pieces) < 2 * len(sources[i])]
    assert [found[i] for i in ended] == [greedy[i].text for i in ended]
    assert len({found[i] for i in ended}) > 100, "the translations are too alike to compare"


def test_int8_translates_nearly_the_same(bergamot: Path, tmp_path: Path) -> None:
    loaded = trained_model(steps=400, **FOR_BROWSERS)
    found = translated(bergamot, exported(loaded, tmp_path, "browser"), "int8shiftAll")
    expected = own_translator(loaded).translate(LINES, beam=1)
    assert sum(map(str.__eq__, found, expected)) > 60  # a width of 32 is rounded much


def test_quantised_weights_are_within_half_a_step(tmp_path: Path) -> None:
    loaded = trained_model(steps=1, **FOR_BROWSERS)
    items = read_items(exported(loaded, tmp_path, "browser") / "model.bin")
    weight = loaded.model.get_parameter("decoder.layers.1.feed_forward.up.weight").detach().numpy()
    shape, data = items["decoder_l2_ffn_W1"]
    assert shape == weight.shape[::-1]
    factor = np.frombuffer(data[weight.size : weight.size + 4], np.float32)[0]
    quantised = np.frombuffer(data[: weight.size], np.int8).reshape(weight.shape)
    assert factor == pytest.approx(127 / abs(weight).max())
    np.testing.assert_allclose(quantised / factor, weight, atol=0.51 / factor)
    table, _ = items["Wemb"]
    assert loaded.tokenizer.target.size % 8 and table[0] % 8 == 0


def read_items(file: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Return the shapes and data of a file of Marian."""
    content = file.read_bytes()
    version, count = struct.unpack_from("<QQ", content)
    assert version == 1
    headers = [struct.unpack_from("<QQQQ", content, 16 + 32 * i) for i in range(count)]
    offset = 16 + 32 * count
    names, shapes = [], []
    for length, *_ in headers:
        names.append(content[offset : offset + length - 1].decode())
        offset += length
    for _, _, rank, _ in headers:
        shapes.append(struct.unpack_from(f"<{rank}i", content, offset))
        offset += 4 * rank
    [padding] = struct.unpack_from("<Q", content, offset)
    offset += 8 + padding
    items = {}
    for name, shape, (*_, size) in zip(names, shapes, headers, strict=True):
        assert offset % 256 == 0
        items[name] = shape, content[offset : offset + size]
        offset += size
    assert offset == len(content)
    return items


@pytest.mark.parametrize(
    ("variant", "named"),
    [
        ({"start": "symbol"}, "model.start=symbol"),
        ({"norm": "pre"}, "model.norm=pre"),
        ({"positions": "sinusoidal"}, "model.positions=sinusoidal"),
        ({"activation": "swiglu"}, "model.activation=swiglu"),
        ({"tied": False}, "model.tied=false"),
        ({"shared": False}, "tokenizer.shared=false"),
    ],
    ids=str,
)
def test_other_models_are_refused(variant: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"does not support {named}.*browser.yaml"):
        exported(trained_model(steps=1, **{**FOR_BROWSERS, **variant}), tmp_path, "browser")
    assert not (tmp_path / "exported").exists()


def test_widths_that_bergamot_cannot_multiply_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.ffn_dim=40, not a multiple of 16"):
        exported(trained_model(steps=1, ffn_dim=40, **FOR_BROWSERS), tmp_path, "browser")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model directory of a model that fits."""
    exported(trained_model(steps=400, **FOR_BROWSERS), tmp_path, "seq2seq")
    return tmp_path / "model"


def test_two_models_of_a_direction_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"both translate en-de"):
        export_page([model, model], tmp_path / "page")
    assert not (tmp_path / "page").exists()


def test_other_formats_take_one_model(model: Path) -> None:
    with pytest.raises(SystemExit, match="--to argos takes one RUN, not 2"):
        main(["export", str(model), str(model), "--to", "argos", "-o", "page"])


def test_without_npm_the_command_that_fetches_bergamot_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    export_page([model], tmp_path / "page")
    package, archive = "@browsermt/bergamot-translator", "browsermt-bergamot-translator"
    install = f"npm pack {package}@{VERSION} && tar xzf {archive}-{VERSION}.tgz"
    assert f"with Node.js, run `{install}` in the folder" in caplog.text
    assert install in (tmp_path / "page/index.html").read_text()
    assert not (tmp_path / "page/package").exists()
