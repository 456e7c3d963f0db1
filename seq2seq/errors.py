"""User errors, and optional packages (extras in pyproject.toml)."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 40


def short(value: object) -> str:
    """Return a shortened `repr` for a message: a value from a user's file may be huge."""
    return _SHORT.repr(value)


class UserError(Exception):
    """Error in a recipe, file or command. The message says what, where and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to an error about an unknown name; `;` if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ";"


def not_a_number(model: str) -> str:
    """Return the error message for a model that predicts NaN."""
    return (
        f"{model} predicts NaN probabilities: its weights are damaged or its training has "
        "diverged; use another checkpoint"
    )


class UnfinishedError(UserError):
    """Failure not caused by the input. Finished work is kept, and the same command resumes."""


@contextmanager
def named_output(name: object) -> Iterator[None]:
    """Turn an OSError while writing into a UserError with the name of the output."""
    try:
        yield
    except BrokenPipeError:  # not an error: the reader has closed the pipe
        raise
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}") from None


def require_extra(package: str, purpose: str) -> None:
    """Raise UserError unless a package is installed in a version that pyproject.toml allows.

    purpose: subject of the error message, such as `--to argos`.
    """
    # Here, since it takes a tenth of the time of `seq2seq --help`.
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    needed = Requirement(package)
    with suppress(PackageNotFoundError):  # seq2seq itself may run without being installed
        known = map(Requirement, requires("seq2seq") or ())
        needed = next((requirement for requirement in known if requirement.name == package), needed)
    install = f'pip install "{package}{needed.specifier}"'
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise UserError(f"{purpose} needs the package {package}: {install}") from None
    if not needed.specifier.contains(installed, prereleases=True):
        raise UserError(f"{purpose} does not work with {package} {installed}: {install}")
