"""`seq2seq doctor`: each kind of trouble has a line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from commands import ENVIRONMENT

from seq2seq import doctor
from seq2seq.doctor import Finding, examine


def test_a_working_machine_has_no_failure() -> None:
    found = list(examine())
    assert not [each for each in found if each.level == "failed"], found
    shown = "\n".join(each.text for each in found)
    for part in ("torch", "cores", "training in", "resumed and translated"):
        assert part in shown, part


@pytest.mark.parametrize("broken", ["missing", "broken"])
def test_it_works_without_torch(broken: str, tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    error = "OSError('libtorch_cpu.so: cannot open shared object file')"
    if broken == "missing":
        error = "ModuleNotFoundError(\"No module named 'torch'\")"
    (folder / "__init__.py").write_text(f"raise {error}\n")
    command = [sys.executable, "-m", "seq2seq", "doctor"]
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert (
        "failed   torch cannot be used: " in done.stdout and "pip install -U torch" in done.stdout
    )
    assert "failed   self-test: " in done.stdout
    assert "failed checks: 2" in done.stderr


def test_missing_and_old_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version

    def version(name: str) -> str:
        if name == "xxhash":
            raise PackageNotFoundError(name)
        return {"psutil": "0.0.1", "datasets": "99"}.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    failed = [each for each in doctor._packages() if each.level == "failed"]
    texts = {each.text.partition(': pip install "')[0] for each in failed}
    assert texts == {
        "seq2seq does not work with psutil 0.0.1",
        "seq2seq does not work with datasets 99",
        "seq2seq needs the package xxhash",
    }


def test_a_check_that_raises_is_a_failure_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> Iterator[Finding]:
        raise RuntimeError("no\nluck")
        yield

    for name in ("_packages", "_devices", "_self_test"):
        monkeypatch.setattr(doctor, name, check)
    found = list(examine())
    assert {each.level for each in found} == {"failed"} and len(found) == 3
    assert found[1].text == "torch cannot be used: no luck: pip install -U torch"
