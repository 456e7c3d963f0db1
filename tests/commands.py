"""Commands as a user runs them: in a fork of the tests' process, or in the process itself."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial

import pytest
from forked import exit_code, fork

from seq2seq.cli import main

COMMAND = [sys.executable, "-m", "seq2seq"]
ENVIRONMENT = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def seq2seq(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command in a fork of this process, which has torch loaded already."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        files[0].write(stdin)
        files[0].seek(0)
        command = [*map(str, arguments)]
        streams = [file.fileno() for file in files]
        code = exit_code(fork(partial(main, command), streams, **ENVIRONMENT))
        for file in files[1:]:
            file.seek(0)
        return subprocess.CompletedProcess(command, code, files[1].read(), files[2].read())


def error(*arguments: object, stdin: bytes = b"") -> str:
    """Run a command in this process that must fail with a one-line error."""
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        file.write(stdin)
        file.seek(0)
        patch.setattr(sys, "stdin", io.TextIOWrapper(file))
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
    message = str(ended.value.code)
    assert message.startswith("seq2seq: error: ") and "\n" not in message, message
    return message
