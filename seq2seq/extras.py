"""Optional packages (extras in pyproject.toml)."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from seq2seq.errors import UserError

OLDEST = {
    "babel": "2.12",
    "ctranslate2": "4.8",
    "markdown-it-py": "3.0",
    "prometheus-client": "0.20",
    "python-multipart": "0.0.20",
    "srt": "3.5",
    "starlette": "0.46",
    "tensorboard": "2.14",
    "transformers": "5.0",
    "translate-toolkit": "3.14",
    "uvicorn": "0.34",
    "vl-convert-python": "1.7",
}
"""Oldest supported versions."""


def require_extra(package: str, purpose: str) -> None:
    """Raise UserError unless a package is installed in a supported version.

    purpose: subject of the error message, such as `--to argos`.
    """
    oldest = OLDEST[package]
    install = f'pip install "{package}>={oldest}"'
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise UserError(f"{purpose} needs the package {package}: {install}") from None
    if Version(installed) < Version(oldest):
        raise UserError(f"{purpose} needs {package} {oldest} or newer, not {installed}: {install}")
