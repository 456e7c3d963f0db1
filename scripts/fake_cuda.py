"""Run a script with autograd for fake CUDA tensors, without a GPU.

Usage: python scripts/fake_cuda.py SCRIPT [ARGUMENT ...]

A build of torch without CUDA supports fake tensors and autocast on `cuda`, but aborts when autograd
asks for the streams of the device. This script compiles a small library and loads it before torch.
The library reports one GPU with one stream. It needs a C++ compiler (CXX, by default c++) and the
headers of torch. A build with CUDA is refused.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import subprocess
import sys
import tempfile
from importlib import util
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")


def load() -> None:
    """Compile and load the library. Call it before torch is imported: torch asks only once."""
    spec = util.find_spec("torch")
    if not spec or not spec.origin:
        sys.exit("fake_cuda: error: torch is not installed")
    torch = Path(spec.origin).parent
    if (torch / "lib" / "libtorch_cuda.so").exists():
        sys.exit("fake_cuda: error: torch is built with CUDA; install the CPU build")
    for name in ("libtorch_global_deps.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch / "lib" / name), ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "fake_cuda.so"
        flags = ["-shared", "-fPIC", "-std=c++20", f"-I{torch}/include", f"-L{torch}/lib"]
        command = [os.environ.get("CXX", "c++"), *flags, str(SOURCE), "-o", str(library)]
        command += ["-lc10", "-ltorch_cpu"]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"fake_cuda: error: cannot compile {SOURCE.name}: {error}")
        ctypes.CDLL(str(library))


if __name__ == "__main__":
    load()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
