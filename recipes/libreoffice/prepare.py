"""Extract a parallel corpus from LibreOffice's help pages and message catalogues.

Usage: python recipes/libreoffice/prepare.py [LANGUAGE] [--out data/libreoffice_en_LANGUAGE]

The source language is English. Help pages and English strings are in the same split for every
target language.
"""

from __future__ import annotations

import argparse
import gettext
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq.errors import UserError
from seq2seq.files import sha256_of
from seq2seq.text.language import sentences

FORMAT = 2  # raise it whenever a change below changes the corpus
LANGUAGES = (
    *("ca", "cs", "da", "de", "dz", "el", "es", "et", "eu", "fi", "fr", "gl", "hi", "hu", "id"),
    *("it", "ja", "km", "ko", "nl", "om", "pl", "pt", "pt-br", "ru", "sk", "sl", "sv", "tr"),
    *("vi", "zh-cn", "zh-tw"),
)
"""Languages for which Debian has a package libreoffice-help-LANGUAGE."""
SPLITS = ("train", "dev", "test")
DEV_SHARE, TEST_SHARE = 0.028, 0.031
log = partial(print, file=sys.stderr)
MAX_CHARS = 800
NEAR_PERCENT = 80  # minimum percentage of common words of near-duplicates (Jaccard index)
WAY_OUT = """\
This corpus needs apt-get, dpkg-deb and a package mirror. Without them, train on your own files,
PREFIX.en and PREFIX.de, aligned line by line (with a different PREFIX for each split):
  ./scripts/quickstart data.train=PREFIX data.dev=PREFIX data.test=PREFIX
or on captions from the Hugging Face hub:
  ./scripts/quickstart multi30k_en_de"""


class Pair(NamedTuple):
    """English string, its translation and their origin."""

    origin: str
    page: str
    key: str
    source: str
    target: str


def packages_of(language: str) -> tuple[str, str, str]:
    """Return the packages with the translated help, the English help and the catalogues."""
    return f"libreoffice-help-{language}", "libreoffice-help-en-us", f"libreoffice-l10n-{language}"


def files_of(language: str) -> list[str]:
    """Return the names of the files of a corpus."""
    return [f"{split}.{code}" for split in SPLITS for code in ("en", language)]


def run(command: list[str], folder: Path) -> str:
    """Run a command in a folder and return its standard output."""
    # Without a fixed locale, error messages could be in any language.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("W:")]
        raise UserError("\n  ".join([f"{command[0]} failed:", *lines[:5]]))
    return done.stdout


def fetch(packages: Iterable[str], folder: Path, scratch: Path) -> dict[str, Path]:
    """Download the packages into a folder as an ordinary user, installing nothing."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise UserError(f"the program {program} is missing")
    # As root, apt would switch to its own user, who cannot write to this folder.
    root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    apt = ["apt-get", "-q", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", *root]
    try:
        run([*apt, "download", *packages], folder)
    except UserError as error:
        # The system's package lists are empty or outdated: use private ones.
        log(f"{error}\ntrying again with private package lists")
        for name in ("lists/partial", "cache/archives/partial"):
            (scratch / name).mkdir(parents=True)
        apt += ["-o", f"Dir::State::Lists={scratch / 'lists'}", "-o", "Debug::NoLocking=1"]
        apt += ["-o", f"Dir::Cache={scratch / 'cache'}"]
        run([*apt, "update"], scratch)
        run([*apt, "download", *packages], folder)
    return {path.name.partition("_")[0]: path for path in sorted(folder.glob("*.deb"))}


ELEMENT = re.compile(
    r'(?s)<(?:p|h\d?) id="((?:par|hd)_[^"]+)"(?: class="([^"]*)")?[^>]*>(.*?)</(?:p|h\d?)>'
)
TAG = re.compile(r'(<(?:[^<>"]|"[^"]*")*>)')
SWITCH, DEFAULT = 'class="switchinline"', '<span hidden="true" id="defaul'
ICON = "\0"
INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")


def one_line(text: str) -> str:
    """Collapse white space and drop invisible characters."""
    return " ".join(INVISIBLE.sub("", text).split())


def plain_text(markup: str) -> str:
    """Return the plain text of a paragraph. Of alternatives, only the default is kept."""
    parts: list[str] = []
    hidden: list[bool] = []
    for token in TAG.split(markup):
        if token.startswith("<span"):
            # Alternatives for several platforms are hidden until a script shows one.
            hidden.append('hidden="true"' in token and 'id="defaul' not in token)
        elif token == "</span>" and hidden:
            hidden.pop()
        elif any(hidden):
            continue
        elif token.startswith("<img"):
            parts.append(ICON)
        elif token.startswith("<br"):
            parts.append(" ")
        elif not TAG.fullmatch(token):
            parts.append(html.unescape(token))
    # Remove spaces and brackets around icons: "the icon <img>." becomes "the icon."
    text = re.sub(rf"\(\s*{ICON}\s*\)|\s*{ICON}(?=\s*(?:[.,;:)]|$))", "", "".join(parts))
    return one_line(text.replace(ICON, ""))


def paragraphs(page: Path) -> dict[str, tuple[str, str]]:
    """Return class and markup of the paragraphs of a page, by id and number of occurrence."""
    seen: Counter[str] = Counter()
    result = {}
    for key, kind, markup in ELEMENT.findall(page.read_text(encoding="utf-8")):
        result[f"{key}.{seen[key]}"] = (kind, markup)
        seen[key] += 1
    return result


def read_help(english: Path, translated: Path, dropped: Counter[str]) -> Iterator[Pair]:
    """Align the help pages of both languages by page and paragraph id."""
    for page in sorted(english.rglob("*.html")):
        name = page.relative_to(english)
        source = paragraphs(page)
        target = paragraphs(translated / name) if (translated / name).is_file() else {}
        dropped["in one language only"] += len(source.keys() ^ target.keys())
        for key in source.keys() & target.keys():
            sides = (source[key][1], target[key][1])
            if "code" in source[key][0]:
                dropped["program code"] += 1
            elif any(side.count(SWITCH) != side.count(DEFAULT) for side in sides):
                dropped["platform variants without a default"] += 1
            else:
                yield Pair("help", name.as_posix(), key, *map(plain_text, sides))


def without_accelerator(text: str, context: str) -> str:
    """Remove the mark of the keyboard accelerator from a menu entry."""
    if "extended_tip" in context:
        return text  # help texts have no accelerators
    text = re.sub(r" ?\([~_]\w\)", "", INVISIBLE.sub("", text))  # such as the (~F) of Japanese
    if text.count("~") == 1:
        text = re.sub(r"~(?=\w)", "", text)
    # In other contexts, underscores belong to names such as OPT_TOUCH.
    is_dialog = "|" in context or context in ("stock", "RID_SVXSTR_ADD")
    if is_dialog and text.count("_") == 1 and not re.search(r"%\w*_|\$\(\w*_", text):
        text = re.sub(r"_(?=\S)", "", text)
    return text


def read_catalogues(folder: Path) -> Iterator[Pair]:
    """Read menus, dialogs and messages from the compiled catalogues."""
    for path in sorted(folder.rglob("*.mo")):
        with path.open("rb") as stream:
            entries: dict[Any, str] = vars(gettext.GNUTranslations(stream))["_catalog"]
        for key, translation in entries.items():
            # The catalogue has only the English singular of plural entries: form 0.
            message, form = key if isinstance(key, tuple) else (key, 0)
            context, separator, english = message.partition("\x04")
            if not separator or form:
                continue
            sides = (without_accelerator(text, context) for text in (english, translation))
            yield Pair("catalogue", path.stem, message, *map(one_line, sides))


MARKUP = re.compile(r"</?[A-Za-z][^<>]*>|&(?:\w+|#\w+);|\$\[|\bnot found\]")
LETTER = re.compile(r"[^\W\d_]")


def broken_rule(pair: Pair) -> str | None:
    """Return the rule that a pair breaks, or None."""
    short, long = sorted((len(pair.source), len(pair.target)))
    rules = {
        "empty side": short == 0,
        "no letters": not (LETTER.search(pair.source) and LETTER.search(pair.target)),
        "too long": long > MAX_CHARS,
        "markup": MARKUP.search(pair.source) or MARKUP.search(pair.target),
        "untranslated": pair.source == pair.target and len(pair.source.split()) > 4,
        "length ratio": long > 20 and long > 3 * short,
    }
    return next((rule for rule, broken in rules.items() if broken), None)


def clean(pairs: Iterable[Pair], dropped: Counter[str]) -> list[Pair]:
    """Return the pairs that break no rule, without duplicates, in a fixed order."""
    kept: dict[tuple[str, str], Pair] = {}
    for pair in sorted(pairs):
        if rule := broken_rule(pair):
            dropped[rule] += 1
        elif kept.setdefault((pair.source, pair.target), pair) is not pair:
            dropped["duplicate"] += 1
    return list(kept.values())


def normalised(text: str) -> str:
    """Normalise case, digits, punctuation and white space for comparison."""
    text = re.sub(r"\d+(?:[.,]\d+)*", "0", text.lower())
    return " ".join(re.sub(r"[\W_]+", " ", text).split())


def split_of(pair: Pair) -> str:
    """Return a pair's split, by the hash of its help page or catalogue text."""
    key = pair.page if pair.origin == "help" else normalised(pair.source)
    digest = hashlib.sha256(f"{pair.origin}:{key}".encode()).digest()
    draw = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if draw < TEST_SHARE else "dev" if draw < TEST_SHARE + DEV_SHARE else "train"


class NearIndex:
    """Index of held-out sentences by rare words, to find near-duplicates."""

    def __init__(self, held_out: list[Pair], frequency: Counter[str]) -> None:
        self.frequency = frequency
        self.sources = {normalised(pair.source) for pair in held_out}
        self.targets = {normalised(pair.target) for pair in held_out}
        self.by_word: defaultdict[str, list[frozenset[str]]] = defaultdict(list)
        for words in sorted({frozenset(text.split()) for text in self.sources}, key=sorted):
            for word in self.rare(words):
                self.by_word[word].append(words)

    def rare(self, words: frozenset[str]) -> list[str]:
        """Return the rarest words: enough that any near-duplicate shares one."""
        ordered = sorted(words, key=lambda word: (self.frequency[word], word))
        must_share = -(-len(words) * NEAR_PERCENT // 100)
        return ordered[: len(words) - must_share + 1]

    def rule(self, pair: Pair) -> str | None:
        """Return why a pair is too similar to a held-out sentence, or None."""
        text = normalised(pair.source)
        if text in self.sources or normalised(pair.target) in self.targets:
            return "same text as"
        words = frozenset(text.split())
        for word in self.rare(words):
            for other in self.by_word.get(word, ()):
                shared, union = len(words & other), len(words | other)
                if 100 * shared >= NEAR_PERCENT * union:
                    return "near-duplicate of"
        return None


def sentence_pairs(pair: Pair, language: str) -> list[Pair]:
    """Return the pairs of sentences if both sides have as many; otherwise the pair as it is."""
    sides = ((pair.source, "en"), (pair.target, language))
    sources, targets = ([text for _, text in sentences(*side)] for side in sides)
    if len(sources) != len(targets):
        return [pair]
    return [pair._replace(source=x, target=y) for x, y in zip(sources, targets, strict=True)]


def split_pairs(pairs: list[Pair], language: str, dropped: Counter[str]) -> dict[str, list[Pair]]:
    """Split into train, dev and test, without near-duplicates across splits.

    Paragraphs of train are split into sentences: a small model learns more from them.
    """
    frequency = Counter(word for pair in pairs for word in set(normalised(pair.source).split()))
    splits: dict[str, list[Pair]] = {split: [] for split in SPLITS}
    for split in ("test", "dev", "train"):
        index = NearIndex(splits["test"] + splits["dev"], frequency)
        sources: set[str] = set()
        chosen = [pair for pair in pairs if split_of(pair) == split]
        if split == "train":
            chosen = [part for pair in chosen for part in sentence_pairs(pair, language)]
        for pair in chosen:
            source = normalised(pair.source)
            if rule := index.rule(pair):
                dropped[f"{split}: {rule} a held-out pair"] += 1
            elif split != "train" and source in sources:
                dropped[f"{split}: repeated English side"] += 1
            else:
                splits[split].append(pair)
                sources.add(source)
    return splits


def is_finished(out: Path, language: str) -> bool:
    """Return whether a folder has the complete corpus described by its manifest."""
    try:
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        files = {name: sha256_of(out / name) for name in files_of(language)}
        return bool(manifest["format"] == FORMAT and manifest["files"] == files)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def build(language: str, work: Path, scratch: Path) -> dict[str, Any]:
    """Download, read, clean, split and write the corpus to a folder; return its manifest."""
    (work / "packages").mkdir(parents=True)
    names = packages_of(language)
    versions = []
    for name, path in fetch(names, work / "packages", scratch).items():
        run(["dpkg-deb", "-x", str(path), str(scratch / name)], scratch)
        version = run(["dpkg-deb", "-f", str(path), "Version"], scratch).strip()
        versions.append({"file": path.name, "version": version, "sha256": sha256_of(path)})
    dropped: Counter[str] = Counter()
    translated, english, catalogues = (scratch / name for name in names)
    pages = "usr/share/libreoffice/help"
    code, _, country = language.partition("-")
    folder = translated / pages / "-".join(filter(None, [code, country.upper()]))
    read = list(read_help(english / pages / "en-US", folder, dropped))
    num_read = Counter(help=len(read) + dropped.total())  # with the paragraphs dropped so far
    catalogue = list(read_catalogues(catalogues))
    num_read["catalogue"] = len(catalogue)
    read += catalogue
    splits = split_pairs(clean(read, dropped), language, dropped)
    if not all(splits.values()):
        raise UserError("no text found in the packages: their format may have changed")
    for name in files_of(language):
        split, _, code = name.partition(".")
        lines = [f"{pair.source if code == 'en' else pair.target}\n" for pair in splits[split]]
        (work / name).write_text("".join(lines), encoding="utf-8", newline="\n")
    return {
        "format": FORMAT,
        "packages": versions,
        "read": num_read,
        "dropped": dict(sorted(dropped.items())),
        "kept": {split: Counter(pair.origin for pair in splits[split]) for split in SPLITS},
        "files": {name: sha256_of(work / name) for name in files_of(language)},
    }


def publish(work: Path, out: Path, files: list[str]) -> None:
    """Move a finished corpus to its folder, the manifest last."""
    if not out.exists():
        work.rename(out)
        return
    (out / "manifest.json").unlink(missing_ok=True)
    shutil.rmtree(out / "packages", ignore_errors=True)
    for name in ("packages", *files, "manifest.json"):
        (work / name).replace(out / name)


def table(manifest: dict[str, Any]) -> str:
    """Return the counts of a manifest as a short table."""
    rows = [f"{title}: {name}" for title in ("read", "dropped") for name in manifest[title]]
    counts = [*manifest["read"].values(), *manifest["dropped"].values()]
    lines = [f"{row:<50}{count:>7,}" for row, count in zip(rows, counts, strict=True)]
    for split, kept in manifest["kept"].items():
        parts = ", ".join(f"{count:,} {origin}" for origin, count in sorted(kept.items()))
        lines.append(f"{f'kept: {split} ({parts})':<50}{sum(kept.values()):>7,}")
    return "\n".join(lines)


def main() -> int:
    """Create the corpus unless it exists; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    language_help = f"target language: {', '.join(LANGUAGES)} (de)"
    parser.add_argument("language", nargs="?", default="de", metavar="LANGUAGE", help=language_help)
    parser.add_argument("--out", type=Path, help="folder (data/libreoffice_en_LANGUAGE)")
    options = parser.parse_args()
    language: str = options.language
    if language not in LANGUAGES:
        log(f"no help pages in {language}; there are: {', '.join(LANGUAGES)}")
        return 1
    out = (options.out or Path(f"data/libreoffice_en_{language}")).resolve()
    if is_finished(out, language):
        log(f"{out} exists: nothing to do")
        return 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # In the parent folder of `out`: a rename cannot cross file systems.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
            work, scratch = Path(name, "corpus"), Path(name, "scratch")
            scratch.mkdir()
            manifest = build(language, work, scratch)
            text = json.dumps(manifest, indent=2, ensure_ascii=False)
            (work / "manifest.json").write_text(f"{text}\n", encoding="utf-8")
            publish(work, out, files_of(language))
    except (UserError, OSError) as error:
        log(f"cannot create the corpus: {error}\n\n{WAY_OUT}")
        return 1
    log(f"{table(manifest)}\ncorpus: {os.path.relpath(out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
