"""The programs of the WMT14 recipe: unpacking the archives, scoring as in the paper."""

from __future__ import annotations

import html
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from forked import served_command

from seq2seq.data.lines import read_file
from seq2seq.errors import UserError

RECIPE = Path(__file__).parent.parent / "recipes" / "wmt14_en_de"


def load(name: str) -> ModuleType:
    spec = util.spec_from_file_location(f"wmt14_{name}", RECIPE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


score, unpacking = load("score"), load("prepare")


def test_compound_splitting_equals_the_perl_expression() -> None:
    assert score.split_compounds("rich-text - form") == "rich ##AT##-##AT## text - form"
    # Matches do not overlap: of two hyphens around one letter the second stays.
    assert score.split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_both_ways_of_scoring_are_named_and_differ_where_they_should() -> None:
    pytest.importorskip("sacremoses")
    references = [f"Der Text-Editor Nummer {i} ist ein sehr gutes Programm ." for i in range(9)]
    hypotheses = [line.replace("sehr ", "") for line in references]
    found = score.scores(hypotheses, references, [0, 4])
    assert "another test set" in next(iter(found))
    newstest2014 = [score.FIRST_LINE] * 3003
    assert score.test_set(3003, newstest2014) == "wmt14/full"
    assert score.test_set(2737, newstest2014) == "wmt14"
    assert score.test_set(3003, ["Another year's"] * 3003) == "another test set"
    full, _, paper = found.values()
    assert [way["lines"] for way in found.values()] == [9, 2, 9]
    assert "tok:13a" in full["signature"] and "tok:none" in paper["signature"]
    assert 0 < full["bleu"] < paper["bleu"] < 100  # a compound in three parts: longer matches
    perfect = score.scores(references, references, None).values()
    assert all(way["bleu"] == pytest.approx(100) for way in perfect)
    assert score.paper_tokens(["„Rock-Musik“, sagt er."]) == [
        "„ Rock ##AT##-##AT## Musik &quot; , sagt er ."  # Moses' list has no opening quote
    ]


def test_the_lines_of_the_filtered_set_are_found() -> None:
    source, reference = ["a", "b ", "a", "a", "c"], ["A", "B", "Ah", "A", "C"]
    assert score.select_lines(source, reference, [("a", "A"), ("b", "B"), ("c", "C")]) == [0, 1, 4]
    assert score.select_lines(source, reference, [("a", "Ah"), ("c", "?")]) == [2, 4]
    with pytest.raises(UserError, match="has a line that is not in --source: 'a'"):
        score.select_lines(["a", "b"], ["A", "B"], [("b", "B"), ("a", "A")])


def make_archives(folder: Path, texts: dict[str, list[str]] | None = None) -> None:
    """Write archives like those of the site, with the given lines of each file."""
    folder.mkdir()
    for archive, members in unpacking.ARCHIVES.items():
        with tarfile.open(folder / archive, "w:gz") as tar:
            for member, name in members.items():
                lines = texts[name] if texts else ["Zwei & drei", f" aus  {name}"]
                text = "".join(f"{' '.join(line.split())}\n" for line in lines)
                if member.endswith(".sgm"):
                    marked = (f'<seg id="1">{html.escape(line)}</seg>\n' for line in lines)
                    text = f'<srcset setid="x"><doc>\n<p>\n{"".join(marked)}</p></doc></srcset>\n'
                info = tarfile.TarInfo(member)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))


def test_archives_are_unpacked_with_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_archives(tmp_path / "site")
    out = tmp_path / "out"
    command = ["prepare.py", str(tmp_path / "site"), "--out", str(out)]
    monkeypatch.setattr("sys.argv", command)
    unpacking.main()
    assert read_file(out / "europarl-v7.de") == ["Zwei & drei", "aus europarl-v7.de"]
    assert read_file(out / "newstest2014.en") == ["Zwei & drei", "aus newstest2014.en"]
    sums = (out / "SHA256SUMS").read_text().splitlines()
    assert len(sums) == len(list(out.iterdir())) - 1 == 12
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    (tmp_path / "site" / "dev.tgz").unlink()
    unpacking.main()  # what was unpacked needs it no more
    (out / "newstest2013.en").unlink()
    with pytest.raises(SystemExit, match=r"^error: .* has no dev\.tgz"):
        unpacking.main()
    (tmp_path / "site" / "dev.tgz").write_bytes(b"\x1f\x8b not one")
    with pytest.raises(SystemExit, match=r"^error: .*; download it again$"):
        unpacking.main()


def test_from_the_archives_to_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of run.sh, with a model of a few updates."""
    pytest.importorskip("sacremoses")
    texts = {}
    for members in unpacking.ARCHIVES.values():
        for name in members.values():
            place, _, language = name.partition(".")
            chosen = range(0, 40, 2) if place.endswith("-filtered") else range(40)
            noun = ("text-editor", "Text-Editor")[language == "de"]
            year = place.removesuffix("-filtered")
            texts[name] = [f"{noun} {i} {year}" for i in chosen]
    make_archives(tmp_path / "site", texts)
    home = tmp_path / "home"
    shutil.copytree(RECIPE, home / "recipes" / RECIPE.name)
    (home / "scripts").mkdir()
    shutil.copy(RECIPE.parent.parent / "scripts" / "train", home / "scripts")
    sizes = "tokenizer.vocab_size=320 model.dim=16 model.ffn_dim=16 model.num_heads=2"
    layers = "model.encoder_layers=1 model.decoder_layers=1"
    updates = "training.max_steps=4 training.batch_tokens=200 training.average_last=2"
    every = "training.checkpoint_every_minutes=null training.checkpoint_every=2"
    script = str(home / "recipes" / RECIPE.name / "run.sh")
    options = f"{sizes} {layers} {updates} {every}".split()
    command = [script, "t2t", "../../site", *options]
    with served_command() as served:
        path = f"{served}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        subprocess.run(command, cwd=home / "recipes", env=os.environ | {"PATH": path}, check=True)

    run = home / "runs" / "wmt14_en_de_t2t"
    first, second, third = (run / "newstest2014.scores").read_text().splitlines()
    assert "another test set, 40 lines" in first and "tok:13a" in first
    assert "a part of it, 20 lines" in second
    assert "the paper's (Moses, compounds split), 40 lines" in third and "tok:none" in third
    assert len(read_file(run / "newstest2014.hyp.de")) == 40
    inputs = json.loads((run / "starts.jsonl").read_text())["data"]["inputs"]
    sums = [line.split()[0] for line in (run / "SHA256SUMS").read_text().splitlines()]
    # All but the filtered test set is what the run itself read.
    assert {each["sha256"] for each in inputs} < set(sums) and len(set(sums)) == 12


def test_the_test_sets_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def test_set(name: str) -> SimpleNamespace:
        """Replaces sacreBLEU's download by local files."""
        stem = tmp_path / name.replace("/", "_")
        for language in ("en", "de"):
            Path(f"{stem}.{language}").write_text(f"a line of {name} in {language}\n")
        return SimpleNamespace(
            get_source_file=lambda pair: f"{stem}.{pair[:2]}",
            get_reference_files=lambda pair: [f"{stem}.{pair[3:]}"],
        )

    out = tmp_path / "out"
    monkeypatch.setattr("sys.argv", ["prepare.py", "--out", str(out)])
    with monkeypatch.context() as patch:
        sets = {name: test_set(name) for name in unpacking.FETCHED}
        patch.setattr(unpacking.sacrebleu, "DATASETS", sets)
        unpacking.main()
    assert read_file(out / "newstest2014.de") == ["a line of wmt14/full in de"]
    assert read_file(out / "newstest2014-filtered.en") == ["a line of wmt14 in en"]
    with monkeypatch.context() as patch:
        patch.setattr(unpacking.sacrebleu, "DATASETS", None)
        unpacking.main()
    assert len(list(out.iterdir())) == 5
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    # What is asked of sacreBLEU is there, under these names.
    for name in unpacking.FETCHED:
        assert "en-de" in unpacking.sacrebleu.DATASETS[name].langpairs


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
