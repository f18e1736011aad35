"""What single deviations change in sentences and labels (see DEVIATIONS.md).

Example: python benchmarks/deviations_labels.py ../shared/data/qa_feedback/dev_feedback.json --pipeline en_core_web_sm

Reads a feedback file. The original cuts sentences by spaCy's `en_core_web_sm` and, for RougeLSum, by NLTK's published
Punkt model. The first is an option (`--pipeline`: an installed spaCy pipeline, or its directory); for the second stands
Punkt with parameters learnt from the file itself. All are held against the sentences into which the file's passages
were published. Half a minute on one CPU core without a pipeline, two with one.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from nltk.tokenize.punkt import PunktSentenceTokenizer

from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.functions import rouge_lsum
from finegrained_rlhf.text.segmentation import Segmenter, SpacySegmenter, Span, sub_sentence_spans
from reward_models.completeness import (
    SentenceId,
    TokenF1Matcher,
    mapped_sentences,
    needed_sentences,
    passage_sentences,
    scores_to_preferences,
)
from reward_models.kinds import FACTUALITY, RELEVANCE


class PunktSegmenter:
    """NLTK's sentence splitter with parameters learnt from `text`."""

    def __init__(self, text: str) -> None:
        self._punkt = PunktSentenceTokenizer(text)

    def sentences(self, text: str) -> list[Span]:
        """Character spans of the sentences."""
        return list(self._punkt.span_tokenize(text))

    def sub_sentences(self, text: str) -> list[Span]:
        """Character spans of the sub-sentences, by the project's rule inside these sentences."""
        return sub_sentence_spans(text, self.sentences(text))


def answers_cut(records: Sequence[FeedbackRecord], segmenters: Mapping[str, Segmenter]) -> dict[str, str]:
    """Answers that each two cut otherwise, the labels of the segment models that follow, and RougeLSum."""
    answers = [answer for record in records for answer in record.predictions]
    cuts = {name: [segmenter.sentences(answer) for answer in answers] for name, segmenter in segmenters.items()}
    lines = {}
    for one, other in itertools.combinations(segmenters, 2):
        differ = sum(ours != theirs for ours, theirs in zip(cuts[one], cuts[other], strict=True))
        lines[f"answers, {one} and {other}"] = f"{differ} of {len(answers)} are cut otherwise"
    for name, segmenter in segmenters.items():
        counts = [sum(map(len, cuts[name])), sum(len(segmenter.sub_sentences(answer)) for answer in answers)]
        for kind in (RELEVANCE, FACTUALITY):
            labels = [label for record in records for label in kind.labels(record, segmenter).labels]
            counts += [labels.count(1), labels.count(0)]
        rouge = rouge_lsum([r.predictions[0] for r in records], [[r.gold or ""] for r in records], segmenter)
        lines[f"answers, {name}"] = (
            "{} sentences, {} sub-sentences; labels has error / no error: relevance {} / {}, factuality {} / {}; "
            "RougeLSum of prediction 1 {:.4f}"
        ).format(*counts, rouge)
    return lines


def published_ends(records: Sequence[FeedbackRecord], segmenter: Segmenter) -> str:
    """Sentence ends inside the published passages that a segmenter finds again; the end of a passage does not count."""
    both = found = published = 0
    for record in records:
        for passage in record.passages:
            text, theirs = "", set[int]()
            for sentence in passage.sentences:
                text = f"{text} {sentence}".strip()
                theirs.add(len(text))
            ours = {end for _, end in segmenter.sentences(text)} - {len(text)}
            theirs -= {len(text)}
            both, found, published = both + len(ours & theirs), found + len(ours), published + len(theirs)
    return f"{both / published:.1%} of {published} published sentence ends found, {both / found:.1%} of {found} correct"


class FirstWins(TokenF1Matcher):
    """The thesis to the letter: where no sentence shares a word all tie at 0, and the first one wins."""

    def __init__(self, sentences: dict[SentenceId, str]) -> None:
        super().__init__(sentences)
        self._first = next(iter(sentences), None)

    def best(self, piece: str) -> SentenceId | None:
        """The sentence with the highest word F1 with `piece`."""
        return super().best(piece) or self._first


def no_shared_word(records: Sequence[FeedbackRecord], segmenter: Segmenter) -> str:
    """Completeness comparisons when a sub-sentence without a shared word maps to the first sentence."""
    pieces = alone = changed = 0
    for record in records:
        sentences = passage_sentences(record.passages)
        judged = []
        for matcher in (TokenF1Matcher(sentences), FirstWins(sentences)):
            needed = needed_sentences(record, matcher, segmenter)
            mapped = [mapped_sentences(answer, matcher, segmenter) for answer in record.predictions]
            scores = [len({sentence for _, sentence in row} & needed) / max(len(needed), 1) for row in mapped]
            judged.append(scores_to_preferences(scores))
            corrected = record.feedback.corrected_prediction if record.feedback else None
            if type(matcher) is TokenF1Matcher and corrected is not None:
                mapped.append(mapped_sentences(corrected, matcher, segmenter))
                found = [sentence for row in mapped for _, sentence in row]
                pieces, alone = pieces + len(found), alone + found.count(None)
        changed += sum(ours != theirs for ours, theirs in zip(*judged, strict=True))
    return (
        f"{alone} of {pieces} sub-sentences of answers and corrections share no word with a passage sentence; "
        f"{changed} of {6 * len(records)} comparisons change"
    )


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("feedback", type=Path, help="a QA-FEEDBACK feedback file")
    parser.add_argument("--pipeline", help="an installed spaCy pipeline, or the directory of one")
    given = parser.parse_args()
    records = read_feedback(given.feedback)
    passages = (passage for record in records for passage in record.passages)
    segmenters: dict[str, Segmenter] = {name: SpacySegmenter(name) for name in ("rules", "english")}
    segmenters["Punkt"] = PunktSegmenter("\n\n".join(" ".join(passage.sentences) for passage in passages))
    if given.pipeline is not None:
        segmenters[Path(given.pipeline).name] = SpacySegmenter(given.pipeline)
    lines = answers_cut(records, segmenters)
    lines |= {f"passages, {name}": published_ends(records, segmenter) for name, segmenter in segmenters.items()}
    lines["no shared word"] = no_shared_word(records, segmenters["rules"])
    for name, line in lines.items():
        print(f"{name:16} {line}")


if __name__ == "__main__":
    main()
