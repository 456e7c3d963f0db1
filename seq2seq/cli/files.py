"""Input and output files of the commands."""

from __future__ import annotations

import argparse
import glob
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from seq2seq.errors import UserError

if TYPE_CHECKING:
    from seq2seq.processes import Processes


def document_format(options: argparse.Namespace) -> str | None:
    """Return the format of the document to translate, or None for lines of text."""
    from seq2seq.documents.formats import format_of

    named = options.format or next(filter(None, map(format_of, options.files)), "text")
    if named == "text":
        return None
    if len(options.files) != 1:
        raise UserError("give one document at a time (--format text translates lines)")
    names = ["alignment", "scores", "json", "json_input", "tokens", "score_target", "prefixes"]
    used = [name for name in [*names, "constraints"] if getattr(options, name)]
    if used or options.nbest > 1:
        option = (used or ["nbest"])[0].replace("_", "-")
        raise UserError(f"--{option} is for lines of text, not for documents (--format text)")
    return str(named)


def on_files(options: argparse.Namespace) -> tuple[Processes, partial[None]]:
    """Return the processes of a command, and `process_streams` with its files and output.

    Raises UserError if a file cannot be read or written. Call it before loading a model.
    """
    from seq2seq.data.lines import process_streams, require_files
    from seq2seq.processes import LONG_TIMEOUT, Processes

    require_writable_output(options)
    processes = Processes.join(LONG_TIMEOUT)
    require_files(options.files)
    return processes, partial(
        process_streams,
        files=options.files,
        output=options.output,
        errors=options.errors,
        processes=processes,
    )


def require_writable_output(options: argparse.Namespace) -> None:
    """Raise UserError if the output is not writable or would overwrite another file.

    Protected are standard input, the files of runs and models, and files that options name.
    """
    from seq2seq.files import require_writable
    from seq2seq.training.records import require_outside_of_runs

    output = options.output
    if output is None:
        return
    require_outside_of_runs(output)
    values = [value for value in vars(options).values() if value is not output]
    items = [item for value in values if isinstance(value, list) for item in value]
    prefix = Path(getattr(options, "data", None) or "/")
    data = prefix.parent.glob(f"{glob.escape(prefix.name)}*") if prefix.name else ()
    inputs = [path for path in (*values, *items, *data) if isinstance(path, Path)]
    require_writable(output, [*inputs, Path("/dev/stdin")])
