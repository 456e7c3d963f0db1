"""Docstrings as Markdown."""

from __future__ import annotations

import re

_CODE = re.compile(r"(`[^`]+`)")


def escaped(text: str) -> str:
    """Escape Markdown markup outside of inline code."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([*<\[])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
