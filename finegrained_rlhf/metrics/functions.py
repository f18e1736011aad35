"""The arithmetic of the metrics, without `evaluate`, and how alike two rankings or two series of numbers are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.text.scores import word_tokens
from finegrained_rlhf.text.segmentation import Segmenter, SpacySegmenter


def _lines(text: str, segmenter: Segmenter) -> str:
    """The sentences of a text, one a line; white space inside a sentence becomes single spaces."""
    return "\n".join(" ".join(text[start:end].split()) for start, end in segmenter.sentences(text))


def rouge_lsum_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], segmenter: Segmenter | None = None
) -> list[float]:
    """RougeLSum F-measure of each prediction, in [0, 1]: the maximum over its references.

    Summary-level ROUGE-L (Lin 2004, union of longest common subsequences over newline-joined sentences) with Porter
    stemming, by `rouge_score`. Sentences are cut by the project's own segmenter.

    Raises:
        ValueError: the numbers of predictions and references differ, or a prediction has no reference.
        ConfigError: `rouge_score` is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError("RougeLSum needs rouge_score: pip install rouge-score") from None
    _require_references(predictions, references)
    scorer = RougeScorer(["rougeLsum"], use_stemmer=True)
    segmenter = segmenter or SpacySegmenter()
    scores = []
    for prediction, group in zip(predictions, references, strict=True):
        answer = _lines(prediction, segmenter)
        f_measures = (scorer.score(_lines(reference, segmenter), answer)["rougeLsum"].fmeasure for reference in group)
        scores.append(float(max(f_measures)))
    return scores


def rouge_lsum(
    predictions: Sequence[str], references: Sequence[Sequence[str]], segmenter: Segmenter | None = None
) -> float:
    """Mean of `rouge_lsum_scores`, in [0, 1]; 0 without predictions."""
    return finite_mean(rouge_lsum_scores(predictions, references, segmenter))


def rouge1_scores(predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """ROUGE-1 F1 of each prediction with its reference, in [0, 1]: lower-cased words, unstemmed, by `rouge_score`.

    Raises:
        ValueError: the numbers of predictions and references differ.
        ConfigError: `rouge_score` is not installed.
    """
    return [float(score.fmeasure) for score in _scored(predictions, references)]


def rouge1_recalls(predictions: Sequence[str], references: Sequence[str]) -> list[float]:
    """The share of each reference's words that its prediction has (ROUGE-1 recall); else as `rouge1_scores`."""
    return [float(score.recall) for score in _scored(predictions, references)]


def _scored(predictions: Sequence[str], references: Sequence[str]) -> Iterator[Any]:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise ConfigError("ROUGE-1 needs rouge_score: pip install rouge-score") from None
    if len(predictions) != len(references):
        raise ValueError(f"need a reference a prediction, got {len(predictions)} and {len(references)}")
    scorer = RougeScorer(["rouge1"], use_stemmer=False)
    for prediction, reference in zip(predictions, references, strict=True):
        yield scorer.score(reference, prediction)["rouge1"]


def sacre_bleu(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, str]:
    """BLEU-4 of a corpus with sacrebleu's own settings (Post 2018), and the signature that names them.

    Case counts, texts are tokenised as 13a, precisions of 0 are smoothed (`exp`). A corpus without any n-gram of four
    tokens has a score of 0, even where predictions and references are equal: BLEU is not for answers of one word.

    Args:
        predictions: texts; may be empty.
        references: one or more a prediction.

    Returns:
        The score in [0, 100] and the signature; 0 and an empty one without predictions.

    Raises:
        ValueError: the numbers of predictions and references differ, or a prediction has no reference.
        ConfigError: `sacrebleu` is not installed.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise ConfigError("BLEU needs sacrebleu: pip install sacrebleu") from None
    _require_references(predictions, references)
    if not predictions:
        return 0.0, ""
    bleu = BLEU(force=True)  # no advice about texts that look tokenised
    most = max(map(len, references))
    streams: list[Any] = [[group[i] if i < len(group) else None for group in references] for i in range(most)]
    return float(bleu.corpus_score(list(predictions), streams).score), str(bleu.get_signature())


def _require_references(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(predictions) != len(references) or any(not group for group in references):
        raise ValueError(f"need one or more references a prediction, got {len(predictions)} and {len(references)}")


def error_free_share(flags: Sequence[Sequence[int]]) -> float:
    """Share of segments without error over all responses, each segment counting once, in [0, 1].

    Args:
        flags: for each response the flags of its segments, 1 = no error, 0 = error.

    Returns:
        0 where no response has a segment: an empty answer earns no credit.

    Raises:
        ValueError: a flag is neither 0 nor 1.
    """
    values = [int(flag) for row in flags for flag in row]
    if any(value not in (0, 1) for value in values):
        raise ValueError("segment flags must be 0 (error) or 1 (no error)")
    return finite_mean(values)


def finite_mean(values: Sequence[float]) -> float:
    """Arithmetic mean; 0 of nothing.

    Raises:
        ValueError: a value is infinite or not a number.
    """
    if any(not math.isfinite(value) for value in values):
        raise ValueError("the mean of infinite or undefined values was asked for")
    return math.fsum(values) / len(values) if values else 0.0


def perplexity_of(nll: float) -> float:
    """Exp of a negative log-likelihood a token (nats); at most exp(700), which is still finite."""
    return math.exp(min(nll, 700.0))


def words_with_letters(text: str) -> list[str]:
    """The lower-case words of a text; tokens without a letter or digit are no words here."""
    return [token for token in word_tokens(text) if any(map(str.isalnum, token))]


def repeated_bigram_share(words: Sequence[str]) -> float:
    """1 − (different pairs of neighbouring words) / (all of them): 0 where no pair comes twice, near 1 in a loop.

    It is 1 − distinct-2 (Li et al., 2016). A word three times in a row repeats its pair once.

    Args:
        words: of a text, in order.

    Returns:
        0 to 1; 0 for fewer than two words.
    """
    pairs = list(zip(words, words[1:], strict=False))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


def kendall_tau_b(x: Sequence[float], y: Sequence[float], tie: float = 0.0) -> float | None:
    """Kendall's τ_b = (C − D) / √((C + D + X)(C + D + Y)) over all pairs of items.

    C pairs are ordered alike by x and y, D the other way round, X are tied in x alone and Y in y alone.

    Source: Kendall (1945), The treatment of ties in ranking problems.

    Args:
        x: one number an item.
        y: one number an item.
        tie: numbers that differ by no more are tied.

    Returns:
        A number in [−1, 1]; None where x or y ties all pairs, or there is none.

    Raises:
        ValueError: x and y differ in length.
    """
    alike = opposed = only_x = only_y = 0
    for (x_i, y_i), (x_j, y_j) in combinations(zip(x, y, strict=True), 2):
        tied_x, tied_y = abs(x_i - x_j) <= tie, abs(y_i - y_j) <= tie
        if tied_x or tied_y:
            only_x += tied_x and not tied_y
            only_y += tied_y and not tied_x
        elif (x_i < x_j) == (y_i < y_j):
            alike += 1
        else:
            opposed += 1
    ordered = alike + opposed
    size = math.sqrt((ordered + only_x) * (ordered + only_y))
    return (alike - opposed) / size if size else None


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's r = Cov(x, y) / √(Var(x) Var(y)); None where x or y does not vary.

    Raises:
        ValueError: x and y differ in length.
    """
    both, of_x, of_y = covariance(x, y), covariance(x, x), covariance(y, y)
    return both / math.sqrt(of_x * of_y) if of_x > 0 and of_y > 0 else None


def covariance(x: Sequence[float], y: Sequence[float]) -> float:
    """Population covariance Σ (x − μ_x)(y − μ_y) / n; 0 of nothing.

    Raises:
        ValueError: x and y differ in length.
    """
    if not len(x):
        return 0.0
    mean_x, mean_y = math.fsum(x) / len(x), math.fsum(y) / len(y)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / len(x)
