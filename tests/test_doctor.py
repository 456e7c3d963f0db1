"""`seq2seq doctor`: each kind of trouble has a line that says what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import ENVIRONMENT

from seq2seq import doctor
from seq2seq.doctor import Finding, examine


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)


def test_a_working_machine_has_no_failure() -> None:
    found = list(examine())
    assert not [each for each in found if each.level == "failed"], found
    shown = "\n".join(each.line() for each in found)
    for part in ("torch", "GiB free", "cores", "training in", "used a toy"):
        assert part in shown, part
    assert all(each.advice for each in found if each.level != "ok")
    assert "hub does not answer (Connection refused): data sets" in shown


@pytest.mark.parametrize("broken", ["missing", "broken"])
def test_it_works_without_torch(broken: str, tmp_path: Path) -> None:
    folder = tmp_path / "torch"
    folder.mkdir()
    error = "ModuleNotFoundError(\"No module named 'torch'\")" if broken == "missing" else (
        "OSError('libtorch_cpu.so: cannot open shared object file')")  # fmt: skip
    (folder / "__init__.py").write_text(f"raise {error}\n")
    command = [sys.executable, "-m", "seq2seq", "doctor"]
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert (
        "failed   torch cannot be used: " in done.stdout and "pip install -U torch" in done.stdout
    )
    assert "no self-test" in done.stdout and "GiB free" in done.stdout
    assert "2 of these failed" in done.stderr


def levels(check: Callable[[], Any]) -> list[str]:
    return [each.level for each in check()]


def test_missing_and_old_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.version

    def version(name: str) -> str:
        if name == "xxhash":
            raise PackageNotFoundError(name)
        return {"psutil": "0.0.1", "datasets": "99"}.get(name) or real(name)

    monkeypatch.setattr(doctor, "version", version)
    failed = [each for each in doctor._packages() if each.level == "failed"]
    assert {each.text for each in failed} == {"psutil 0.0.1", "datasets 99", "xxhash is missing"}
    assert all(each.advice.startswith('pip install "') for each in failed)


def test_little_space_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    little = SimpleNamespace(free=2**30, available=2**30, total=2**34)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: little)
    assert set(levels(doctor._disk)) == {"warning"}
    monkeypatch.setattr("psutil.virtual_memory", lambda: little)
    assert doctor._memory().level == "warning"
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    assert doctor._compiler().level == "warning"


def test_a_check_that_raises_is_a_failure_with_advice() -> None:
    def check() -> Finding:
        raise RuntimeError("no\nluck")

    found = doctor._attempt("thing", check, "try again")
    assert found.line() == "failed   thing: no luck: try again"
