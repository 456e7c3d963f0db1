"""Linear baseline: TF-IDF of words and bigrams with logistic regression.

Usage: python recipes/imdb/tfidf.py FOLDER     (pip install scikit-learn first)

FOLDER has train.tsv and test.tsv (or .tsv.gz) with `label<TAB>text` lines. As in the recipe,
repetitions and texts of the test set are not used for training. No development set is held out.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from seq2seq.config import CorpusConfig, LabelledConfig
from seq2seq.preparation.corpora import open_corpus


def read(folder: Path, split: str) -> list[tuple[str, str]]:
    """Return the texts of a split with their labels."""
    path = folder / f"{split}.tsv"
    path = path if path.exists() else folder / f"{split}.tsv.gz"
    return list(open_corpus(LabelledConfig(), CorpusConfig(path=str(path)), split).read())


def main() -> None:
    """Train with words and with words and bigrams; print the accuracy on the test set."""
    parser = argparse.ArgumentParser(description="TF-IDF and logistic regression")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    test_texts, test_labels = zip(*read(folder, "test"), strict=True)
    seen = set(test_texts)
    train = {text: label for text, label in read(folder, "train") if text not in seen}
    print(f"train: {len(train):,} texts, test: {len(test_texts):,} texts")
    for max_n in (1, 2):
        start = time.perf_counter()
        vectorizer = TfidfVectorizer(ngram_range=(1, max_n), sublinear_tf=max_n > 1, min_df=2)
        regression = LogisticRegression(C=1.0 if max_n == 1 else 10.0, max_iter=1000)
        regression.fit(vectorizer.fit_transform(train), list(train.values()))
        accuracy = regression.score(vectorizer.transform(test_texts), list(test_labels))
        seconds = time.perf_counter() - start
        name = "words" if max_n == 1 else "words, bigrams"
        print(f"{name:16} {100 * accuracy:.2f} %  ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
