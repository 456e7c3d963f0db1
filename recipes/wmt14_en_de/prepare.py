"""Unpack the archives of WMT14 English-German, or download only its test sets.

Usage: python recipes/wmt14_en_de/prepare.py [FOLDER] [--out data/wmt14_en_de]

FOLDER has the archives of https://www.statmt.org/wmt14/translation-task.html. Without it, only
newstest2014 is downloaded, by sacreBLEU. The recipes then read the other corpora from the hub.
"""

from __future__ import annotations

import argparse
import gzip
import html
import re
import shutil
import sys
import tarfile
import zlib
from pathlib import Path
from typing import IO

import sacrebleu

from seq2seq.errors import UserError
from seq2seq.files import write_sums

ARCHIVES = {
    "training-parallel-europarl-v7.tgz": {
        f"training/europarl-v7.de-en.{language}": f"europarl-v7.{language}"
        for language in ("en", "de")
    },
    "training-parallel-commoncrawl.tgz": {
        f"commoncrawl.de-en.{language}": f"commoncrawl.{language}" for language in ("en", "de")
    },
    "training-parallel-nc-v9.tgz": {
        f"training/news-commentary-v9.de-en.{language}": f"news-commentary-v9.{language}"
        for language in ("en", "de")
    },
    "dev.tgz": {
        f"dev/newstest2013.{language}": f"newstest2013.{language}" for language in ("en", "de")
    },
    "test-full.tgz": {
        "test-full/newstest2014-deen-src.en.sgm": "newstest2014.en",
        "test-full/newstest2014-deen-ref.de.sgm": "newstest2014.de",
    },
    "test-filtered.tgz": {
        "test/newstest2014-deen-src.en.sgm": "newstest2014-filtered.en",
        "test/newstest2014-deen-ref.de.sgm": "newstest2014-filtered.de",
    },
}
"""Required members of each archive, and the names of the unpacked files."""

FETCHED = {"wmt14/full": "newstest2014", "wmt14": "newstest2014-filtered"}
"""Names of the unpacked test sets, by sacreBLEU's names."""
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL)


def segments(markup: str) -> str:
    """Return the sentences of an SGML file, one per line."""
    sentences = (" ".join(html.unescape(text).split()) for text in SEGMENT.findall(markup))
    return "".join(f"{sentence}\n" for sentence in sentences)


def copy(source: IO[bytes], sink: IO[bytes]) -> None:
    """Copy a file. SGML is reduced to its sentences."""
    head = source.read(1 << 20)
    if b"<seg" in head[:10_000]:
        sink.write(segments((head + source.read()).decode("utf-8")).encode())
        return
    while head:
        sink.write(head)
        head = source.read(1 << 20)


def unpack(archive: Path, members: dict[str, str], out: Path) -> None:
    """Unpack members of an archive. Raises UserError if one is missing or damaged."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member, name in members.items():
                source = tar.extractfile(member)
                if source is None:
                    raise KeyError
                draft = out / f"{name}.tmp"
                with draft.open("wb") as sink:
                    copy(source, sink)
                draft.rename(out / name)
    except KeyError:
        raise UserError(f"{archive} has no {member}: is it from WMT14?") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        raise UserError(f"{archive} is damaged: {error}; download it again") from None


def unpack_all(folder: Path, out: Path) -> None:
    """Unpack all missing files."""
    wanted = {
        name: members
        for name, members in ARCHIVES.items()
        if not all((out / file).exists() for file in members.values())
    }
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise UserError(
            f"{folder} has no {', '.join(missing)}: download from "
            "https://www.statmt.org/wmt14/translation-task.html"
        )
    for name, members in wanted.items():
        print(f"unpacking {folder / name}", file=sys.stderr)
        unpack(folder / name, members, out)


def fetch_test_sets(out: Path) -> None:
    """Download newstest2014, full and filtered, with sacreBLEU, unless the files exist."""
    for name, stem in FETCHED.items():
        files = [out / f"{stem}.{language}" for language in ("en", "de")]
        if all(file.exists() for file in files):
            continue
        test_set = sacrebleu.DATASETS[name]
        try:
            fetched = [test_set.get_source_file("en-de"), *test_set.get_reference_files("en-de")]
        except OSError as error:
            raise UserError(
                f"{stem} (sacreBLEU's {name}) cannot be downloaded: {error}; check the network, "
                "or give a folder with the archives of the WMT site"
            ) from None
        for path, file in zip(fetched, files, strict=True):
            draft = file.with_name(f"{file.name}.tmp")
            shutil.copyfile(path, draft)
            draft.rename(file)


def main() -> None:
    """Parse the arguments; unpack or download the files."""
    parser = argparse.ArgumentParser(description="unpack the WMT site's files")
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("data/wmt14_en_de"))
    options = parser.parse_args()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        if options.folder:
            unpack_all(options.folder, options.out)
        else:
            fetch_test_sets(options.out)
        write_sums(options.out)
        print(f"{options.out} is complete", file=sys.stderr)
    except (UserError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
