"""Unpack the archives of WMT14 English-German, or download only its test sets.

Usage: python recipes/wmt14_en_de/prepare.py [FOLDER] [--out data/wmt14_en_de]

FOLDER holds the archives as https://www.statmt.org/wmt14/translation-task.html offers them. Without
it only newstest2014 is written, as sacreBLEU fetches it; the recipes take the rest from the hub.
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
from seq2seq.files import sha256_of

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
"""sacreBLEU's names of the test sets in the last two archives."""
SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL)


def segments(markup: str) -> str:
    """Return the sentences of an SGML file, one a line."""
    sentences = (" ".join(html.unescape(text).split()) for text in SEGMENT.findall(markup))
    return "".join(f"{sentence}\n" for sentence in sentences)


def copy(source: IO[bytes], sink: IO[bytes]) -> None:
    """Copy a member; of SGML, its sentences."""
    head = source.read(1 << 20)
    if b"<seg" in head[:10_000]:
        sink.write(segments((head + source.read()).decode("utf-8")).encode())
        return
    while head:
        sink.write(head)
        head = source.read(1 << 20)


def unpack(archive: Path, members: dict[str, str], out: Path) -> None:
    """Write an archive's members; raises UserError where one is missing or broken."""
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
        raise UserError(f"{archive} has no {member}: is it that of WMT14?") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        raise UserError(f"{archive} is not whole: {error}; fetch it again") from None


def unpack_all(folder: Path, out: Path) -> None:
    """Write what is needed of every archive."""
    wanted = {
        name: members
        for name, members in ARCHIVES.items()
        if not all((out / file).exists() for file in members.values())
    }
    if missing := [name for name in wanted if not (folder / name).is_file()]:
        raise UserError(
            f"{folder} has no {', '.join(missing)}; they are at "
            "https://www.statmt.org/wmt14/translation-task.html"
        )
    for name, members in wanted.items():
        print(f"unpacking {folder / name}", file=sys.stderr)
        unpack(folder / name, members, out)


def fetch_test_sets(out: Path) -> None:
    """Write newstest2014, whole and filtered, as sacreBLEU fetches it, if it is not there."""
    for name, stem in FETCHED.items():
        files = [out / f"{stem}.{language}" for language in ("en", "de")]
        if all(file.exists() for file in files):
            continue
        test_set = sacrebleu.DATASETS[name]
        try:
            fetched = [test_set.get_source_file("en-de"), *test_set.get_reference_files("en-de")]
        except OSError as error:
            raise UserError(
                f"{stem} (sacreBLEU's {name}) cannot be fetched: {error}; is there a network? Or "
                "give the folder with the WMT site's archives"
            ) from None
        for place, file in zip(fetched, files, strict=True):
            draft = file.with_name(f"{file.name}.tmp")
            shutil.copyfile(place, draft)
            draft.rename(file)


def write_checksums(out: Path) -> None:
    """Write the sha256 of all that was unpacked or fetched."""
    files = sorted(file for members in ARCHIVES.values() for file in members.values())
    sums = [f"{sha256_of(out / file)}  {file}\n" for file in files if (out / file).exists()]
    (out / "SHA256SUMS").write_text("".join(sums))


def main() -> None:
    """Parse the arguments, and unpack what is there."""
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
        write_checksums(options.out)
        print(f"{options.out} has all that is needed", file=sys.stderr)
    except (UserError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
