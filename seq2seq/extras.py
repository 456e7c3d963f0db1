"""Optional packages (extras in pyproject.toml)."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires, version

from seq2seq.errors import UserError


def require_extra(package: str, purpose: str) -> None:
    """Raise UserError unless a package is installed in a version that pyproject.toml allows.

    purpose: subject of the error message, such as `--to argos`.
    """
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
