"""Argument parser with one-line errors, and argument types."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from seq2seq.errors import did_you_mean, short


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2, with a suggestion for a misspelt choice."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        separator = "" if message.endswith(("?", ";")) else ";"
        self.exit(2, f"{self.prog}: error: {message}{separator} see `{self.prog} --help`\n")


def up_to(limit: int, least: int = 1) -> Callable[[str], int]:
    """Return an argument type for whole numbers from `least` to `limit`."""

    def count(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is below {least}")
        if number > limit:
            raise argparse.ArgumentTypeError(f"{short(number)} is above {limit:,}")
        return number

    count.__name__ = "whole number"  # for the errors of argparse
    return count


count = up_to(2**31 - 1)


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
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=X with a number X")
    return name, value
