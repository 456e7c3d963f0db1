"""The WMT14 recipe's own programs: unpacking the site's files, and scoring in the paper's way."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from seq2seq.config import load_config
from seq2seq.data.corpus import read_file
from seq2seq.errors import UserError

RECIPE = Path(__file__).parent.parent / "recipes" / "wmt14_en_de"


def load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(f"wmt14_{name}", RECIPE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


score, unpacking = load("score"), load("prepare")


def test_compounds_are_split_as_by_the_perl_expression() -> None:
    assert score.split_compounds("rich-text - form") == "rich ##AT##-##AT## text - form"
    # Matches do not overlap: of two hyphens around one letter the second stays.
    assert score.split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_both_ways_of_scoring_are_named_and_differ_where_they_should() -> None:
    pytest.importorskip("sacremoses")
    references = [f"Der Text-Editor Nummer {i} ist ein sehr gutes Programm ." for i in range(9)]
    hypotheses = [line.replace("sehr ", "") for line in references]
    found = score.scores(hypotheses, references, [0, 4])
    full, _, paper = found.values()
    assert [way["lines"] for way in found.values()] == [9, 2, 9]
    assert "tok:13a" in full["signature"] and "tok:none" in paper["signature"]
    assert 0 < full["bleu"] < paper["bleu"] < 100  # a compound in three parts: longer matches
    assert all(way["bleu"] == pytest.approx(100) for way in
               score.scores(references, references, None).values())  # fmt: skip
    assert score.as_in_the_paper(["„Rock-Musik“, sagt er."]) == [
        "„ Rock ##AT##-##AT## Musik &quot; , sagt er ."  # Moses' list has no opening quote
    ]


def test_the_lines_of_the_filtered_set_are_found() -> None:
    assert score.chosen_lines(["a", "b ", "a", "c"], ["a", "a", "c"]) == [0, 2, 3]
    with pytest.raises(UserError, match="has a line that --source has not: 'a'"):
        score.chosen_lines(["a", "b"], ["b", "a"])


def make_archives(folder: Path) -> None:
    """Write the site's archives, with a sentence or two in each member."""
    folder.mkdir()
    for archive, members in unpacking.ARCHIVES.items():
        with tarfile.open(folder / archive, "w:gz") as tar:
            for member, name in members.items():
                text = f"Zwei & drei aus {name}\n"
                if member.endswith(".sgm"):
                    text = ('<srcset setid="x"><doc>\n<p>\n<seg id="1">Zwei &amp; drei</seg>\n'
                            f'<seg id="2"> aus  {name}</seg>\n</p></doc></srcset>\n')  # fmt: skip
                info = tarfile.TarInfo(member)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))


def test_the_sites_archives_are_unpacked_with_their_checksums(tmp_path: Path) -> None:
    make_archives(tmp_path / "site")
    command = [sys.executable, str(RECIPE / "prepare.py"), str(tmp_path / "site"), "--out"]
    out = tmp_path / "out"
    subprocess.run([*command, str(out)], check=True)
    assert read_file(out / "europarl-v7.de") == ["Zwei & drei aus europarl-v7.de"]
    assert read_file(out / "newstest2014.en") == ["Zwei & drei", "aus newstest2014.en"]
    sums = (out / "SHA256SUMS").read_text().splitlines()
    assert len(sums) == len(list(out.iterdir())) - 1 == 12
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    (tmp_path / "site" / "dev.tgz").unlink()
    failed = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)
    assert failed.returncode and "has no dev.tgz" in failed.stderr
    (tmp_path / "site" / "dev.tgz").write_bytes(b"\x1f\x8b not one")
    (out / "newstest2013.en").unlink()
    failed = subprocess.run([*command, str(out)], capture_output=True, text=True, check=False)
    assert (
        failed.stderr.splitlines()[-1].startswith("error: ") and "fetch it again" in failed.stderr
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Table 3 and section 5 of the paper
        ("base", (512, 2048, 8, 0.1, 100_000, 25_000, 4000, 0.98, 1e-9, 5, 37_000)),
        ("big", (1024, 4096, 16, 0.3, 300_000, 25_000, 4000, 0.98, 1e-9, 20, 37_000)),
        # tensor2tensor's transformer_base_v3; Ott et al. 2018
        ("t2t", (512, 2048, 8, 0.1, 300_000, 32_768, 8000, 0.997, 1e-9, 8, 32_000)),
        ("fairseq_big", (1024, 4096, 16, 0.3, 24_000, 400_000, 4000, 0.98, 1e-8, 10, 32_000)),
    ],
)
def test_recipes_have_the_published_settings(name: str, expected: tuple[float, ...]) -> None:
    config = load_config(RECIPE / f"{name}.yaml")
    model, training = config.model, config.training
    assert expected == (
        model.dim, model.ffn_dim, model.num_heads, model.dropout, training.max_steps,
        training.batch_tokens, training.warmup_steps, training.adam_beta2, training.adam_eps,
        training.average_last, config.tokenizer.vocab_size,
    )  # fmt: skip
    assert (model.encoder_layers, model.decoder_layers, model.tied) == (6, 6, True)
    assert training.label_smoothing == 0.1 and training.keep_last >= training.average_last
    assert (config.decoding.beam, config.decoding.length_penalty) == (4, 0.6)


@pytest.mark.parametrize(
    ("name", "machines", "processes"),
    [("one_gpu", 1, 1), ("eight_gpus", 1, 8), ("two_machines", 2, 16)],
)
def test_accelerate_reads_the_launch_configurations(
    name: str, machines: int, processes: int
) -> None:
    found = load_config_from_file(str(RECIPE / "accelerate" / f"{name}.yaml"))
    assert (found.num_machines, found.num_processes) == (machines, processes)
    assert found.mixed_precision == "no" and not found.use_cpu
