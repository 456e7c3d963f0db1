"""Processes forked from a test: they start at once, since torch is loaded already."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

# Imported here once: every forked process that prepares data or trains would load them.
import datasets  # noqa: F401
from accelerate.state import AcceleratorState

from seq2seq.cli import main


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process; return its exit code, or minus the signal's number."""
    return exit_code(fork(work))


def in_processes(count: int, work: Callable[[], object], log: Path) -> list[int]:
    """Run `work` in several processes, as `fork_several` does; return their exit codes."""
    return [exit_code(child) for child in fork_several(count, work, log)]


def fork_several(count: int, work: Callable[[], object], log: Path) -> list[int]:
    """Run `work` in several processes that find each other as those of a launcher do.

    Their output is appended to a file. Returns their ids.
    """
    port, output = str(free_port()), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    place |= {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    streams = 0, output, output
    children = [
        fork(work, streams, **place, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(count)
    ]
    os.close(output)
    return children


def seq2seq(count: int, log: Path, *arguments: object) -> str:
    """Run a command in several processes, which must succeed; return their output."""
    codes = in_processes(count, lambda: main([*map(str, arguments)]), log)
    text = log.read_text(encoding="utf-8")
    assert codes == [0] * count, text
    return text


CLIENT = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [request[:1]], [0, 1, 2])
    server.sendall(request[1:])
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(16) or 70))
"""


@contextmanager
def served_command() -> Iterator[Path]:
    """Yield a folder with an executable `seq2seq` for shells, which starts at once.

    It asks a fork of this process to run the command in a fork of its own, on its standard streams.
    """
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as listener:
        address, executable = f"{name}/socket", Path(name, "seq2seq")
        listener.bind(address)
        listener.listen()
        executable.write_text(CLIENT.format(python=sys.executable, address=address))
        executable.chmod(0o755)
        server = fork(partial(_serve, listener, os.getpid()))
        try:
            yield Path(name)
        finally:
            os.kill(server, signal.SIGTERM)
            exit_code(server)


def _serve(listener: socket.socket, parent: int) -> None:
    """Answer clients, each in a process of its own, for the commands of a pipe run together."""
    listener.settimeout(1)
    while os.getppid() == parent:
        with suppress(TimeoutError):
            client, _ = listener.accept()
            with client:
                fork(partial(_answer, client))
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(client: socket.socket) -> None:
    """Run a client's command, and send the exit code that a shell would see."""
    request, streams, _, _ = socket.recv_fds(client, 1 << 16, 3)
    while part := client.recv(1 << 16):
        request += part
    arguments, folder, environment = json.loads(request)

    def command() -> None:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        main(arguments)

    child = fork(command, streams)
    for stream in streams:
        os.close(stream)  # else who reads from the command would wait for this process
    code = exit_code(child)
    client.sendall(str(code if code >= 0 else 128 - code).encode())


def fork(work: Callable[[], object], streams: Sequence[int] = (), **environment: str) -> int:
    """Run `work` in a forked process; return its id.

    streams: files that become standard input, output and error.
    """
    child = os.fork()
    if child:
        return child
    gc.freeze()  # a search of an earlier test would wait for its threads, which are not here
    code: object = 1
    try:
        os.environ |= environment
        AcceleratorState._reset_state(reset_partial_state=True)
        if streams:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
            logging.getLogger().handlers.clear()  # pytest's
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def exit_code(child: int) -> int:
    """Wait for a process; return its exit code, or minus the signal's number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
