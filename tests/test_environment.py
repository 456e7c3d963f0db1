"""The build of torch that the scripts install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parent.parent / "scripts" / "environment"


@contextmanager
def index(folder: Path) -> Iterator[str]:
    """Serve a folder as a package index would."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def options(commands: Path, address: str) -> tuple[str, str]:
    """Return the arguments of pip and the messages to the user."""
    bash = ["bash", "-c", f"source {ENVIRONMENT} && torch_options {sys.executable}"]
    env = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "TORCH_CPU_INDEX": address}
    found = subprocess.run(bash, env=env, capture_output=True, text=True, check=True)
    return found.stdout.strip(), found.stderr


def command(folder: Path, name: str, text: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    path.chmod(0o755)


NO_GPU = pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="an NVIDIA GPU is here")


@pytest.mark.parametrize(
    ("system", "has_gpu", "has_torch", "message"),
    [
        pytest.param("Linux", False, True, "the CPU build", marks=NO_GPU),
        ("Linux", True, True, "with CUDA, for an NVIDIA GPU"),
        ("Darwin", False, True, "the build for Darwin"),
        pytest.param("Linux", False, False, "{} does not answer", marks=NO_GPU),
    ],
)
def test_the_build_of_torch_fits_the_machine(
    tmp_path: Path, system: str, has_gpu: bool, has_torch: bool, message: str
) -> None:
    (commands := tmp_path / "commands").mkdir()
    command(commands, "uname", system)
    gpus = ("GPU 0: NVIDIA H100", 0) if has_gpu else ("NVIDIA-SMI has failed", 9)
    command(commands, "nvidia-smi", *gpus)
    if has_torch:
        (tmp_path / "torch").mkdir()
    with index(tmp_path) as address:
        told, said = options(commands, address)
    is_cpu_build = message == "the CPU build"
    assert told == (f"--extra-index-url {address}" if is_cpu_build else "")
    assert message.format(address) in said
    assert options(commands, address)[0] == ""  # an index that cannot be reached


def test_the_quick_start_without_apt_uses_the_run_it_made(tmp_path: Path) -> None:
    home, tools = tmp_path / "home", tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "dirname", "env", "head", "ls", "mkdir"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    (home / "scripts").mkdir(parents=True)
    shutil.copy(ENVIRONMENT.parent / "quickstart", home / "scripts")
    (home / "scripts" / "environment").write_text(
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."\nfail() { echo "$1" >&2; exit 1; }\n'
        "install_package() { :; }\n"
    )
    for recipe in ("libreoffice", "multi30k_en_de"):
        folder = home / "recipes" / recipe
        folder.mkdir(parents=True)
        script = folder / "run.sh"
        script.write_text(f'#!/usr/bin/env bash\nmkdir -p runs/{recipe}\necho {recipe} "$@" $RUN\n')
        script.chmod(0o755)

    def started(*arguments: str) -> tuple[str, str]:
        script = [str(home / "scripts" / "quickstart"), *arguments]
        env = {"PATH": str(tools)}
        found = subprocess.run(script, env=env, capture_output=True, text=True, check=True)
        return found.stdout.strip(), found.stderr

    said, end = started("training.seed=2")
    assert said == "multi30k_en_de training.max_minutes=15 training.seed=2"
    assert "There is no apt-get" in end
    assert "seq2seq translate runs/multi30k_en_de < FILE" in end
    said, end = started("--run", "runs/second", "data.train=mine")
    assert said == "libreoffice data.train=mine runs/second"
    assert "seq2seq translate runs/second < FILE" in end
