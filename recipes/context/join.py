"""Put the previous lines before each line: python recipes/context/join.py K < FILE > JOINED.

A line becomes `previous ¦ line`, with up to K previous lines of the same document. A blank line
ends a document, and stays blank.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator

SEPARATOR = " \u00a6 "
"""A character that texts do not have (U+00A6)."""


def joined(lines: Iterable[str], count: int) -> Iterator[str]:
    """Yield each line after up to `count` previous lines."""
    previous: deque[str] = deque(maxlen=count)
    for line in lines:
        text = line.strip()
        yield SEPARATOR.join([*previous, text]) if text else ""
        if text:
            previous.append(text)
        else:
            previous.clear()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal():
        sys.exit("usage: python recipes/context/join.py K < FILE > JOINED")
    lines = (line.decode() for line in sys.stdin.buffer)
    for text in joined(lines, int(sys.argv[1])):
        sys.stdout.buffer.write(f"{text}\n".encode())
