"""Minimum Bayes risk (Kumar and Byrne 2004): the hypothesis that the others agree with most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

from seq2seq.decoding.search import Hypothesis

TEMPERATURE = 0.1
"""Of the mean log-probability of a token, in nats. On the development set of Multi30k 0.05 to 0.2
score alike; far above, all hypotheses count the same, far below, the first counts alone."""


def least_risk(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Return the hypothesis of the highest expected sentence BLEU.

    The expectation is over the hypotheses themselves, each as probable as the softmax of its
    log-probability a token (end symbol included) divided by TEMPERATURE. BLEU (sacreBLEU's, of
    sentences) is counted in tokens of the vocabulary, so it asks for no language's words.
    """
    means = [hypothesis.log_prob / (len(hypothesis.tokens) + 1) for hypothesis in hypotheses]
    weights = [math.exp((mean - max(means)) / TEMPERATURE) for mean in means]
    texts = [" ".join(map(str, hypothesis.tokens)) for hypothesis in hypotheses]
    bleu = BLEU(effective_order=True, tokenize="none", force=True)

    def expected(text: str) -> float:
        return sum(
            weight * float(bleu.sentence_score(text, [other]).score)
            for other, weight in zip(texts, weights, strict=True)
        )

    return max(zip(hypotheses, texts, strict=True), key=lambda pair: expected(pair[1]))[0]
