"""Exceptions for user errors."""

import difflib
import errno
import os
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 40


def shown(value: object) -> str:
    """Return a value for a message, shortened: a user's file may contain anything."""
    return _SHORT.repr(value)


class UserError(Exception):
    """An error in a recipe, a file or a command; the message says what, where and what to do."""

    def in_shell(self) -> str:
        """Return the message for a command."""
        return str(self)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown name, to follow the error; `;` without a similar one."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ";"


def not_a_number(model: str) -> str:
    """Return the message for a model whose probabilities are NaN."""
    return (
        f"{model} predicts NaN probabilities: its weights are damaged or its training has "
        "diverged; use another checkpoint"
    )


class OptionError(UserError):
    """A user error about options, named as keywords in Python and as flags by a command.

    The text has them in backquotes: "`nbest`=9 needs ...; widen `beam`".
    """

    def __init__(self, text: str) -> None:
        super().__init__(text.replace("`", ""))
        self._text = text

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (self._text,)  # as it was given, when a process sends it

    def in_shell(self) -> str:
        """Return the message with flags, as in "--nbest 9 needs ...; widen --beam"."""
        flags = re.sub(r"`(\w+)`=", r"`\1` ", self._text)
        return re.sub(r"`(\w+)`", lambda found: f"--{found[1].replace('_', '-')}", flags)


class SharedError(UserError):
    """A user error that every process raises. Only one process reports it."""


@contextmanager
def shared_errors() -> Iterator[None]:
    """Turn user errors that every process raises into SharedErrors."""
    try:
        yield
    except UserError as error:
        raise SharedError(str(error)) from None


class UnfinishedError(UserError):
    """An interruption that the input did not cause. Finished work is kept; the command resumes."""


def is_first_process() -> bool:
    """Return whether this is the first process on its machine, or the only one."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


@contextmanager
def named_output(name: object) -> Iterator[None]:
    """Turn an OSError while writing into a UserError that names the output."""
    try:
        yield
    except BrokenPipeError:  # not an error: the reader has ended
        raise
    except OSError as error:
        missing = error.errno == errno.ENOENT
        reason = "its folder does not exist" if missing else error.strerror
        raise UserError(f"{name} cannot be written: {reason}") from None
