"""What a scorer says of each segment of whole answers, and what it said before the rest of them was there.

A segment is read three times: in the whole answer; in the answer up to the segment's end, which is when `credit=end`
pays it; and in the answer as it stood when the segment's end was decided, which is when `credit=decided` pays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile, at_least
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.rewards.protocol import Scorer
from finegrained_rlhf.text.segmentation import deciding_character
from finegrained_rlhf.text.tables import markdown_table


@dataclass
class Revised:
    """Sums over the segments of a question's answers.

    Attributes:
        record: the question's id.
        segments: how many.
        early: of which so many were decided before the answer ended.
        whole: Σ |w|, w the value of a segment in the whole answer.
        at_end: Σ |w − p|, p the value in the answer up to the segment's end; 0 where no segment is there yet.
        decided: Σ |w − p|, p the value in the text that decides the segment's end.
        moved: segments with text behind them that the answer up to their end does not show as they are.
        seen: segments with text behind them.
        broken: segments that the text which decides them does not show: 0 where a segmenter keeps its promise.
        readings: of scorers of whole answers, the beginnings that end where a sentence ends.
        answer: Σ |w|, once for each of those beginnings.
        apart: Σ |w − p|, p the value of the beginning.
    """

    record: str
    segments: int = 0
    early: int = 0
    whole: float = 0.0
    at_end: float = 0.0
    decided: float = 0.0
    moved: int = 0
    seen: int = 0
    broken: int = 0
    readings: int = 0
    answer: float = 0.0
    apart: float = 0.0


def revisions(scorer: Scorer, prompts: Sequence[Prompt], answers: Sequence[str]) -> list[Revised]:
    """Read every segment of R answers in the whole, up to its end, and where its end was decided; a row an answer.

    Args:
        scorer: of segments, after `setup`; what it declares as `look_ahead` decides, and without it the answers' ends.
        prompts: R prompts with what the scorer reads.
        answers: R answers.
    """
    whole = scorer.score(prompts, answers)
    ahead: int | None = getattr(scorer, "look_ahead", None)
    texts: list[tuple[int, str]] = []
    for row, text in enumerate(answers):
        for _, end in whole.spans[row]:
            place = None if ahead is None else deciding_character(text, end, ahead)
            texts += [(row, text[:end]), (row, text if place is None else text[:place].rstrip())]
    known = _read(scorer, prompts, texts)
    rows = []
    for row, text in enumerate(answers):
        revised = Revised(prompts[row].id)
        for span, value in zip(whole.spans[row], whole.values[row], strict=True):
            place = None if ahead is None else deciding_character(text, span[1], ahead)
            early = "" if place is None else text[:place].rstrip()
            ended = known[row, text[: span[1]]].get(span)
            decided = known[row, early].get(span) if early else value
            behind = bool(text[span[1] :].strip())
            revised.segments += 1
            revised.early += bool(early)
            revised.whole += abs(value)
            revised.at_end += abs(value - (ended or 0.0)) if behind else 0.0
            revised.decided += abs(value - (decided or 0.0))
            revised.moved += behind and ended is None
            revised.seen += behind
            revised.broken += decided is None
        rows.append(revised)
    return rows


def answer_revisions(
    scorer: Scorer, prompts: Sequence[Prompt], answers: Sequence[str], ends: Sequence[Sequence[int]]
) -> list[Revised]:
    """Read R answers in the whole and up to each of their ends, which come from elsewhere; a row an answer."""
    whole = scorer.score(prompts, answers)
    texts = [(row, text[:end]) for row, text in enumerate(answers) for end in ends[row] if text[end:].strip()]
    read = scorer.score([prompts[row] for row, _ in texts], [text for _, text in texts])
    rows = [Revised(prompt.id) for prompt in prompts]
    for (row, _), values in zip(texts, read.values, strict=True):
        value = sum(whole.values[row])
        rows[row].readings += 1
        rows[row].answer += abs(value)
        rows[row].apart += abs(value - sum(values))
    return rows


def _read(
    scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[tuple[int, str]]
) -> dict[tuple[int, str], dict[tuple[int, int], float]]:
    """The values by span of each text of each row; a text that occurs twice is read once."""
    distinct = list(dict.fromkeys(texts))
    scores: SegmentScores = scorer.score([prompts[row] for row, _ in distinct], [text for _, text in distinct])
    return {
        key: dict(zip(spans, values, strict=True))
        for key, spans, values in zip(distinct, scores.spans, scores.values, strict=True)
    }


@dataclass(frozen=True)
class MeasureRevisions(Settings):
    """Measure how much of what a scorer says of segments is changed by the text behind them.

    Attributes:
        scorer: of segments, or of whole answers.
        answers: FILE of outputs (`.jsonl`), or of feedback (`.json`), whose answers are read.
        output: JSON-lines file, a row a question (`Revised`).
        samples: answers of each question that are read, the first ones.
    """

    scorer: Scorer
    answers: InputFile
    output: OutputFile
    samples: Annotated[int, at_least(1)] = 4

    def run(self) -> list[Revised]:
        """Read the answers, write the rows, print their sums.

        Raises:
            DataError: broken answers, or none in them.
            ModelError: the scorer's model is missing or damaged.
        """
        import torch

        prompts, texts = _answers(self.answers, self.samples)
        self.scorer.setup(torch.device("cpu"))
        with torch.no_grad():
            if self.scorer.score(prompts[:1], texts[:1]).whole_response:
                from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, cutter

                cut = cutter(DEFAULT_SEGMENTER, "sentence")
                ends = [[end for _, end in cut(text)] for text in texts]
                rows = answer_revisions(self.scorer, prompts, texts, ends)
            else:
                rows = revisions(self.scorer, prompts, texts)
        by_question = _by_question(rows)
        write_jsonl(self.output, [asdict(row) for row in by_question])
        total = _sum("all", by_question)
        print(f"{markdown_table([shares(asdict(total))], list(shares(asdict(total))))}\nrows: {self.output}")
        return by_question


def _answers(path: str, samples: int) -> tuple[list[Prompt], list[str]]:
    """The answers that have a word, each with its prompt."""
    if Path(path).suffix == ".jsonl":
        found = [(r.id, r.question, r.passages, r.outputs) for r in read_outputs(path)]
    else:
        found = [(r.id, r.question, r.passages, r.predictions) for r in read_feedback(path)]
    prompts, texts = [], []
    for name, question, passages, answers in found:
        for text in answers[:samples]:
            if text.strip():
                prompts.append(Prompt(name, question, (0,), {"question": question, "passages": passages}))
                texts.append(text)
    return prompts, texts


def _by_question(rows: Sequence[Revised]) -> list[Revised]:
    names = dict.fromkeys(row.record for row in rows)
    groups: dict[str, list[Revised]] = {name: [] for name in names}
    for row in rows:
        groups[row.record].append(row)
    return [_sum(name, group) for name, group in groups.items()]


def _sum(name: str, rows: Sequence[Revised]) -> Revised:
    values: list[dict[str, Any]] = [asdict(row) for row in rows]
    return Revised(
        name, **{key: sum(v[key] for v in values) for key in (values[0] if values else {}) if key != "record"}
    )


PARTS = {
    "mass_at_end": ("at_end", "whole"),
    "mass_decided": ("decided", "whole"),
    "moved": ("moved", "seen"),
    "decided_early": ("early", "segments"),
    "answer_apart": ("apart", "answer"),
}
"""By name of a share: the sum that it is of, and of which."""


def shares(sums: dict[str, Any]) -> dict[str, float | None]:
    """The shares of sums (`Revised`); None of nothing."""
    return {name: sums[part] / sums[of] if sums[of] else None for name, (part, of) in PARTS.items()}
