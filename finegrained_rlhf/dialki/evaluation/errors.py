"""Wrong answers for people to read: a seeded sample with dialogue, answer, gold, scores and the class of the error.

The thesis analyses 50 answers with EM = 0 (section 3.3.5); what a mistake is beyond its class is for a reader to say.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl, write_text
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.text.tables import markdown_table

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.evaluation.answers import Answered

KnowledgeError = Literal["wrong_passage", "wrong_span", "overlapping"]
"""The passage holds no gold; it does, and no span of the answer is gold; some are."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|])")
_MEANING: dict[str, str] = {
    "wrong_passage": "the passage holds no gold",
    "wrong_span": "the passage holds gold, and no span of the answer is part of it",
    "overlapping": "some spans are gold: the answer says too much or too little",
}


def check_errors_file(path: str | None, sample: int) -> None:
    """Raise ConfigError where a sample of wrong answers cannot be written as asked."""
    if path is not None and Path(path).suffix != ".jsonl":
        raise ConfigError(f"errors: expected a file NAME.jsonl, beside which NAME.md is written, got {path}")
    if sample < 1:
        raise ConfigError(f"error_sample: expected at least 1, got {sample}")


def knowledge_error(example: DialogueExample, answer: Answered) -> KnowledgeError | None:
    """What is wrong with an answer; None where it matches a reference exactly."""
    if answer.score.exact:
        return None
    chosen = answer.found.knowledge
    gold = [known for known in example.gold if known.passage == chosen.passage]
    if not gold:
        return "wrong_passage"
    touched = any(known.begin <= chosen.end and chosen.begin <= known.end for known in gold)
    return "overlapping" if touched else "wrong_span"


def write_errors(
    path: str | Path, examples: Sequence[DialogueExample], answers: Sequence[Answered], sample: int, seed: int
) -> dict[str, Any]:
    """Draw wrong answers, and write them as JSON lines and, under the same name with `.md`, as a page.

    Every wrong answer is equally likely; those drawn are written in the order of the dialogues.

    Args:
        path: of the JSON lines.
        examples: what was answered, with gold.
        answers: to each.
        sample: how many to draw; all where there are fewer.
        seed: of the draw.

    Returns:
        `answers`, `wrong`, `sampled`, and `classes`: wrong answers of each class, drawn or not.
    """
    kinds = [knowledge_error(example, one) for example, one in zip(examples, answers, strict=True)]
    wrong = [number for number, kind in enumerate(kinds) if kind is not None]
    drawn = sorted(random.Random(seed).sample(wrong, min(sample, len(wrong))))
    counts = Counter(kinds[number] for number in wrong)
    result = {
        "answers": len(answers),
        "wrong": len(wrong),
        "sampled": len(drawn),
        "classes": {kind: counts[kind] for kind in get_args(KnowledgeError)},
    }
    rows = [_row(examples[number], answers[number], str(kinds[number])) for number in drawn]
    write_jsonl(path, rows)
    write_text(Path(path).with_suffix(".md"), _page(rows, result, seed))
    return result


def _row(example: DialogueExample, answer: Answered, kind: str) -> dict[str, Any]:
    turns = [{"role": turn.role, "text": turn.text} for turn in example.turns]
    gold = [{"title": example.passages[known.passage].title} for known in example.gold]
    row = answer.to_json(example)
    known = [{**named, **title} for named, title in zip(row.pop("gold"), gold, strict=True)]
    return {"id": row.pop("id"), "error": kind, "turns": turns, "gold": known, **row}


def _page(rows: Sequence[dict[str, Any]], result: dict[str, Any], seed: int) -> str:
    counts = [{"class": kind, "what": _MEANING[kind], "answers": n} for kind, n in result["classes"].items()]
    drawn = f"{result['sampled']} of {result['wrong']} wrong answers, drawn with seed {seed}"
    return "\n\n".join(
        [
            "# Wrong answers",
            f"{drawn}; {result['answers']} dialogues were answered. The table counts all wrong answers.",
            markdown_table(counts, ["class", "what", "answers"]).strip(),
            *(_entry(row) for row in rows),
        ]
    ) + "\n"  # fmt: skip


def _entry(row: dict[str, Any]) -> str:
    """One wrong answer: the dialogue, what was found and what should have been, each under its title."""
    lines = [f"- {turn['role']}: {_plain(turn['text'])}" for turn in row["turns"]]
    scores = (
        f"F1 {row['f1']:.3f}; probability of the passage {row['probability']:.3f}, of the first span "
        f"{row['begin_probability']:.3f}, of the last {row['end_probability']:.3f}; score {row['score']:.3f}"
    )
    answer = f"**found** in {_place(row)}: {_plain(row['text'])}"
    gold = [f"**gold** in {_place(known)}: {_plain(known['text'])}" for known in row["gold"]]
    gold += [f"**compared with**: {_plain(text)}" for text in row.get("references", ())]
    return "\n\n".join([f"## {_plain(row['id'])}: {row['error']}", "\n".join(lines), answer, *gold, scores])


def _place(known: dict[str, Any]) -> str:
    spans = f"span {known['begin']}" if known["begin"] == known["end"] else f"spans {known['begin']}–{known['end']}"
    return f"passage {known['passage']} ({_plain(known['title']) or 'no title'}), {spans}"


def _plain(text: str) -> str:
    """A text on one line that Markdown shows as it stands."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
