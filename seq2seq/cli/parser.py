"""Argument parser with one-line errors, and argument types."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NoReturn

from seq2seq.errors import did_you_mean


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, with a suggestion for a misspelt choice."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        separator = "" if message.endswith(("?", ";")) else ";"
        self.exit(2, f"{self.prog}: error: {message}{separator} see `{self.prog} --help`\n")


def count(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number


def minutes(text: str) -> float:
    """Parse a number of minutes, an integer or a decimal number."""
    number = float(text)
    if not 0.1 <= number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 1,000,000")
    return number


def path(text: str) -> Path:
    """Parse a path; an empty one is an error."""
    if not text:  # Path("") is the current folder
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def weight(text: str) -> tuple[str, float]:
    """Parse NAME=X; return the name and the number."""
    name, _, number = text.rpartition("=")
    return name, float(number)
