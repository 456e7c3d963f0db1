"""Linear baseline: TF-IDF of words and bigrams with logistic regression.

Usage: python recipes/imdb/tfidf.py FOLDER     (pip install scikit-learn first)

FOLDER holds train.tsv and test.tsv (or .tsv.gz), lines of `label<TAB>text`. As in the recipe, texts
of the test set are left out of training, and so are repetitions; unlike there, none are held out.
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
    """Fit on train, and print the accuracy on test, of single words and with pairs."""
    parser = argparse.ArgumentParser(description="TF-IDF and logistic regression")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    test_texts, test_labels = zip(*read(folder, "test"), strict=True)
    seen = set(test_texts)
    train = {text: label for text, label in read(folder, "train") if text not in seen}
    print(f"{len(train)} texts to train on, {len(test_texts)} to test")
    for words in (1, 2):
        start = time.perf_counter()
        vectorizer = TfidfVectorizer(ngram_range=(1, words), sublinear_tf=words > 1, min_df=2)
        regression = LogisticRegression(C=1.0 if words == 1 else 10.0, max_iter=1000)
        regression.fit(vectorizer.fit_transform(train), list(train.values()))
        accuracy = regression.score(vectorizer.transform(test_texts), list(test_labels))
        seconds = time.perf_counter() - start
        name = "words" if words == 1 else "words and pairs"
        print(f"{name:16} {100 * accuracy:.2f} %  ({seconds:.0f} s)")


if __name__ == "__main__":
    main()
