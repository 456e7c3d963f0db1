"""What one line asks for: text, prefix, terms and references, from plain or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seq2seq.data.json_lines import read_object
from seq2seq.data.lines import open_bytes, read_lines
from seq2seq.decoding.terms import Glossary, Term
from seq2seq.errors import UserError, shown


@dataclass(frozen=True)
class Request:
    """A line to translate."""

    text: str
    number: int = 0
    """The line's number, from 0: samples depend on it."""
    prefix: str = ""
    """Beginning of the translation."""
    terms: tuple[Term, ...] = ()
    references: tuple[str, ...] = ()
    """Translations to score."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields of a JSON line."""

    def __len__(self) -> int:
        return len(self.text)


class RequestReader:
    """Turns input lines into requests, with the lines of files that run parallel to the input."""

    def __init__(
        self,
        *,
        json_lines: bool = False,
        prefixes: Path | None = None,
        constraints: Path | None = None,
        references: Path | None = None,
        glossary: Path | None = None,
    ) -> None:
        """json_lines: each line that is not blank is a JSON object.

        constraints: lines of terms separated by tabs (`Term.parse`).
        """
        self.json_lines = json_lines
        self.glossary = Glossary.load(glossary) if glossary else None
        paths = {"prefixes": prefixes, "constraints": constraints, "references": references}
        self._files = {name: _Parallel(path) for name, path in paths.items() if path}

    def __call__(self, line: str, number: int, where: str) -> Request:
        """Return the request of a line; `where` names file and line in errors."""
        given = {name: parallel.next_line(where) for name, parallel in self._files.items()}
        fields = _json_fields(line, where) if self.json_lines and line.strip() else {}
        text = fields.get("text", line)
        beside = given.get("constraints", "").split("\t")
        own = self._terms([term for term in beside if term.strip()], self._place("constraints"))
        own += self._terms(fields.get("constraints", ()), where)
        from_glossary = self.glossary.terms(text) if self.glossary else []
        references = [given["references"]] if "references" in given else []
        return Request(
            text,
            number,
            prefix=fields.get("prefix", given.get("prefixes", "")),
            terms=tuple(dict.fromkeys([*own, *from_glossary])),
            references=(*references, *fields.get("references", ())),
            fields=fields,
        )

    def _terms(self, texts: Sequence[str], where: str) -> list[Term]:
        try:
            return [Term.parse(text) for text in texts]
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def _place(self, name: str) -> str:
        """Return path and line of what was last read from a parallel file."""
        return self._files[name].place if name in self._files else ""

    def finish(self) -> None:
        """Raise UserError if a parallel file has more lines than the input."""
        for parallel in self._files.values():
            parallel.require_end()


class _Parallel:
    """The lines of a file or pipe, one for each line of the input."""

    def __init__(self, path: Path) -> None:
        self.path, self._number = path, 0
        if not path.exists() or path.is_dir():
            raise UserError(f"file not found: {path}")
        self._lines = self._read()

    @property
    def place(self) -> str:
        """Path and number of the last line."""
        return f"{self.path}, line {self._number}"

    def _read(self) -> Iterator[str]:
        with open_bytes(self.path) as stream:
            yield from read_lines(stream, str(self.path))

    def next_line(self, where: str) -> str:
        line = next(self._lines, None)
        self._number += 1
        if line is None:
            raise UserError(
                f"{self.path} has no line for {where}: it needs one for each input line"
            )
        return line

    def require_end(self) -> None:
        if next(self._lines, None) is not None:
            raise UserError(f"{self.path} has more lines than the input")


def _json_fields(line: str, where: str) -> dict[str, Any]:
    """Read a JSON line; raises UserError for anything but an object with a text."""
    try:
        fields = read_object(line)
    except ValueError as error:
        raise UserError(
            f'{where}: not a JSON object ({error}); --json-input takes lines of {{"text": "..."}}'
        ) from None
    if "text" not in fields:
        raise UserError(f'{where}: the JSON object has no field "text"')
    for key in ("text", "prefix"):
        _require(isinstance(fields.get(key, ""), str), where, key, "a string", fields)
    for key in ("constraints", "references"):
        value = fields.get(key, [])
        strings = isinstance(value, list) and all(isinstance(each, str) for each in value)
        _require(strings, where, key, "a list of strings", fields)
    return fields


def _require(fact: bool, where: str, key: str, kind: str, fields: dict[str, Any]) -> None:
    if not fact:
        raise UserError(f'{where}: "{key}" must be {kind}, not {shown(fields[key])}')
