"""The `seq2seq` command line interface: it parses arguments and reports errors."""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence

from seq2seq.cli.arguments import parse
from seq2seq.errors import UserError
from seq2seq.machine.threads import choose_threads, keep_threads


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command. A user error prints a one-line message and exits with code 1."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: `print` would write messages to standard output
            # Input is empty, messages are discarded, and output is an error.
            access = os.O_WRONLY if name == "stderr" else os.O_RDONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))
    try:
        _run(parse(arguments))
    finally:
        _discard_output()


def _run(options: argparse.Namespace) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # In any locale; a prompt may contain bytes that are not UTF-8.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    choose_threads()
    handler = logging.lastResort  # writes to `sys.stderr`, even if a progress bar has replaced it
    assert handler
    handler.setLevel(logging.NOTSET)
    logging.basicConfig(handlers=[handler], format="%(message)s", level=logging.WARNING)
    logging.getLogger("seq2seq").setLevel(logging.INFO)
    try:
        options.command(options)
    except UserError as error:
        sys.exit(f"seq2seq: error: {error}")
    except (RuntimeError, MemoryError) as error:
        if (explanation := _explain(error)) is None:
            raise
        sys.exit(f"seq2seq: {explanation}")
    except BrokenPipeError:
        sys.exit(1)  # standard output is a closed pipe
    except OSError as error:  # no permission, no space, no such folder
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(f"seq2seq: error: {place}{error.strerror or error}")
    except KeyboardInterrupt:
        print("seq2seq: stopped by Ctrl-C", file=sys.stderr)
        _discard_output()
        os._exit(130)  # sys.exit would wait for running searches
    finally:
        keep_threads()


def _discard_output() -> None:
    """Discard unwritten output, since flushing it at exit would raise again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain(error: RuntimeError | MemoryError) -> str | None:
    """Return the message for a failure of the machine or the network, or None for other errors."""
    from seq2seq.machine.devices import out_of_memory
    from seq2seq.processes import peer_is_lost

    if out_of_memory(error):
        return (
            "error: out of memory; lower --batch-tokens, --beam, --nbest or --samples, or in the "
            "recipe training.micro_batch_tokens, decoding.batch_tokens or the model's size"
        )
    rank = os.environ.get("RANK")
    if rank and peer_is_lost(error):
        return f"process {rank} ends because another process ended"
    if rank and "Timed out waiting" in str(error):
        return (
            f"error: process {rank} timed out waiting for another one: a machine or the network "
            "failed, or a process hangs. Run the same command again to resume"
        )
    return None
