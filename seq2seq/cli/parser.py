"""The parser: errors of one line, types of arguments."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from seq2seq.errors import did_you_mean, shown


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, instead of two screens of all options."""

    def error(self, message: str) -> NoReturn:
        """End the command, with a suggestion where a command is misspelt."""
        if found := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            message += did_you_mean(found[1], re.findall(r"[\w-]+", found[2]))
        joined = "" if message.endswith(("?", ";")) else ";"
        self.exit(2, f"{self.prog}: error: {message}{joined} `{self.prog} --help` says more\n")


def up_to(limit: int, least: int = 1) -> Callable[[str], int]:
    """Return a type of arguments: whole numbers up to a limit."""

    def count(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is below {least}")
        if number > limit:
            raise argparse.ArgumentTypeError(f"{shown(number)} is above {limit:,}")
        return number

    count.__name__ = "whole number"  # as argparse calls it in errors
    return count


count = up_to(2**31 - 1)


def minutes(text: str) -> float:
    """Return a number of minutes, which may have decimals."""
    number = float(text)
    if not 0.1 <= number <= 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.1 to 1,000,000")
    return number


def path(text: str) -> Path:
    """Return a path, which must not be empty."""
    if not text:  # would be the current folder
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def weight(text: str) -> tuple[str, float]:
    """Return name and number of NAME=X."""
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=X, with a number X")
    return name, value
