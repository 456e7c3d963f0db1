"""Add noise to translations: python recipes/back_translation/noise.py < FILE > NOISED.

A tenth of the words are dropped, and words move by up to three places (Edunov et al. 2018). A model
that is trained on varied sources relies less on the errors of the translations.
"""

from __future__ import annotations

import random
import sys

DROPPED = 0.1
"""Share of the words that are dropped."""
DISTANCE = 3
"""Maximum number of places by which a word moves."""


def noised(line: str, generator: random.Random) -> str:
    """Return a line with noise."""
    words = [word for word in line.split() if generator.random() >= DROPPED] or line.split()
    places = [place + generator.uniform(0, DISTANCE + 1) for place in range(len(words))]
    order = sorted(range(len(words)), key=places.__getitem__)
    return " ".join(words[i] for i in order)


if __name__ == "__main__":
    generator = random.Random(0)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(f"{noised(line.decode(), generator)}\n".encode())
