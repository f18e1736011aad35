"""Whether the judges of QA-FEEDBACK's table of policies count: what they give people's answers and trivial ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from finegrained_lab.experiments.gate import CUT_LEAD, GOLD, SFT, judge_gate
from finegrained_lab.experiments.qa_feedback.policies import WEIGHTS, RealPolicyTable
from finegrained_lab.experiments.qa_feedback.questions import TUNING
from finegrained_lab.experiments.qa_feedback.split import split_by_question
from finegrained_lab.experiments.qa_feedback.trivial import BEST_SENTENCE, trivial_answers
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples, read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.runtime.directory.provenance import commit_of
from finegrained_rlhf.text.segmentation import RULES, SpacySegmenter
from finegrained_rlhf.text.trivial import best_sentence, cut_lead
from reward_models.kinds import SegmentKind, kind_named
from reward_models.parts import answer_parts, factuality_parts


@dataclass(frozen=True)
class WriteTrivialAnswers(Settings):
    """Writes outputs of `gold`, `cut_lead` and `best_sentence` for the prompts of a file, to be judged as a system's.

    Attributes:
        data: prompt file with references.
        output_dir: gets `NAME.outputs.jsonl`; an answer that cannot be made is empty.
    """

    data: InputFile
    output_dir: OutputDirectory

    def run(self) -> None:
        """Write them.

        Raises:
            DataError: broken prompts.
        """
        rows: dict[str, list[OutputRecord]] = {}
        for example in read_examples(self.data):
            passages = [passage.text for passage in example.passages]
            answers = {
                GOLD: example.references[0],
                CUT_LEAD: cut_lead(passages),
                BEST_SENTENCE: best_sentence(example.question, passages),
            }
            for name, text in answers.items():
                rows.setdefault(name, []).append(OutputRecord.of(example, [text or ""]))
        for name, records in rows.items():
            write_outputs(Path(self.output_dir) / f"{name}.outputs.jsonl", records)


@dataclass(frozen=True)
class CountedGate(Settings):
    """Adds the gate to a committed table of policies whose judges were not kept, by judges that count the same words.

    They are ridge regressions on the counts, fitted to the half of the feedback that the table's judges learnt from,
    and judge the questions that it held out.

    Attributes:
        data: feedback file.
        table: results file of `RealPolicyTable`; it and its page are written anew.
        folds: as in the table's `SplitQuestions`.
        held_out: as there.
        seed: as there.
        command: that adds it.
    """

    data: InputFile
    table: InputFile
    command: str
    folds: int = 5
    held_out: int = 4
    seed: Seed = 0

    def run(self) -> dict[str, Any]:
        """Fit, judge, and write the table and its page.

        Returns:
            The gate.

        Raises:
            DataError: broken feedback, or no table.
        """
        split = split_by_question(read_feedback(self.data), self.folds, TUNING, self.seed)
        rest = [fold.test for number, fold in enumerate(split) if number != self.held_out]
        learnt = [record for part in rest[len(rest) // 2 :] for record in part]
        totals = counted_totals(learnt, [r for r in split[self.held_out].test if r.passages and r.gold], self.seed)
        gate = judge_gate(
            totals,
            None,
            "ridge regressions on counted words, fitted to the half of the feedback that the page's judges learnt "
            "from, which count the same words and were not kept. `sft` is here the published policy's first answer: "
            "all answers of this page's own SFT were not kept either",
        )
        gate |= {"command": self.command, "commit": commit_of(Path(__file__).parent)}
        result = {**read_json(self.table), "gate": gate}
        page = RealPolicyTable(str(self.table), result["command"], "", result["seeds"], chosen=result["chosen"])
        write_json(self.table, result)
        write_text(Path(self.table).with_suffix(".md"), page.page(result))
        print("\n".join(gate["reasons"]) or "passed")
        return gate


def counted_totals(
    learnt: Sequence[FeedbackRecord], asked: Sequence[FeedbackRecord], seed: int
) -> dict[str, list[float]]:
    """The weighted sum that judges of counted words give answers to questions that they have not seen, by answer.

    Args:
        learnt: feedback that the judges are fitted to.
        asked: questions with gold answers and passages.
        seed: of the answers to other questions.

    Returns:
        Totals, one a question: `gold`, `sft` (the first prediction), `cut_lead`, and further trivial answers.
    """
    from finegrained_lab.experiments.qa_feedback.baselines import counted
    from reward_models.encoders.counts import count_names, word_counts
    from reward_models.training.logistic import Logistic, fit_counts

    segmenter = SpacySegmenter(RULES)
    judges: dict[str, Logistic] = {}
    for name in WEIGHTS:
        kind = replace(kind_named(name), reads_passages=True)
        items = [one.items for one in counted(kind, learnt, segmenter)]
        judges[name] = fit_counts(items, range(len(count_names(kind))), not isinstance(kind, SegmentKind))

    def total(record: FeedbackRecord, text: str) -> float:
        spans = {"relevance": segmenter.sub_sentences(text), "factuality": segmenter.sentences(text)}
        value = 0.0
        for name, weight in WEIGHTS.items():
            kind = replace(kind_named(name), reads_passages=True)
            if name in spans:
                parts = factuality_parts(record.question, record.passages, [text[a:b] for a, b in spans[name]])
            else:
                parts = answer_parts(record.question, record.passages, text)
            logits = judges[name].logits(np.array(word_counts(kind, parts)))
            value += weight * float(np.where(logits > 0, -1, 1).sum() if name in spans else logits[0])
        return value

    rows: dict[str, list[float]] = {}
    for record, others in zip(asked, trivial_answers(asked, seed), strict=True):
        known = {GOLD: record.gold, SFT: record.predictions[0]}
        for name, text in {**known, **others}.items():
            rows.setdefault(name, []).append(total(record, text or ""))
    return rows
