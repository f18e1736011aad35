"""Some rewrites side by side, with the ranks of their gold passages, for a results page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, as_rewrite_data, read_rewrites
from finegrained_rlhf.conqrr.rewards import hit_rank
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import read_trec_run
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class SampleRewrites(Settings):
    """Which rewrites a page shows.

    Attributes:
        data: the questions that were evaluated: a file in the project's format, or a `RewriteData` of another one.
        rewrites: files of rewrites by the name of their system; the human's are shown too.
        runs: directory of the TREC runs that `EvaluateRewrites` wrote, with one of each system and of `rewrite`.
        count: questions, drawn by a hash of their ids among later questions of dialogues with a gold passage: nobody
            picks them.
    """

    data: InputFile | RewriteData
    rewrites: Mapping[str, InputFile]
    runs: InputFile
    count: Annotated[int, at_least(1)] = 8

    def __post_init__(self) -> None:
        if not self.rewrites:
            raise ConfigError("samples.rewrites: expected at least one file of rewrites")

    def read(self) -> list[dict[str, Any]]:
        """One JSON object a question: `id`, `before` (the two turns before it), `question`, and `rewrites`, by system
        a `text` and the `rank` of the best gold passage, null where none was found.

        Raises:
            DataError: a broken file.
        """
        later = [e for e in as_rewrite_data(self.data).read().examples if e.gold and e.history]
        drawn = sorted(later, key=lambda e: (stable_hash("sample", e.id), e.id))[: self.count]
        texts = {"rewrite": {e.id: e.rewrite or "" for e in drawn}}
        texts |= {name: read_rewrites(path) for name, path in self.rewrites.items()}
        searches = {name: read_trec_run(Path(self.runs) / f"{name}.trec") for name in texts}
        return [
            {
                "id": example.id,
                "before": list(example.history[-2:]),
                "question": example.question,
                "rewrites": {
                    name: {"text": rewrites.get(example.id, ""), "rank": best_gold_rank(example, searches[name])}
                    for name, rewrites in texts.items()
                },
            }
            for example in drawn
        ]


def best_gold_rank(example: RewriteExample, run: Mapping[str, Sequence[Hit]]) -> int | None:
    """The best rank of a gold passage of a question in a run, ties counted against it; None where none was found."""
    best = min((hit_rank(run.get(example.id, ()), gold) for gold in example.gold), default=float("inf"))
    return None if best == float("inf") else int(best)


def samples_page(samples: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """The section of a page: a table a question.

    Args:
        samples: what `SampleRewrites.read` gave.
        names: what the page calls systems.
    """
    parts = ["## Rewrites of some questions\n\nDrawn by a hash of their ids. `rank`: of the gold passage."]
    for sample in samples:
        dialogue = " / ".join(_line(text) for text in (*sample["before"], sample["question"]) if text.strip())
        rows = [
            {"by": names.get(name, name), "rewrite": _line(rewrite["text"]), "rank": rewrite["rank"]}
            for name, rewrite in sample["rewrites"].items()
        ]
        parts.append(f"`{sample['id']}`: … {dialogue}\n\n{markdown_table(rows, ['by', 'rewrite', 'rank']).strip()}")
    return "\n\n".join(parts)


def _line(text: str) -> str:
    """A text as part of a line of Markdown: white space squeezed, what Markdown reads escaped."""
    flat = " ".join(text.split())
    for mark in "\\`*_|<[":
        flat = flat.replace(mark, f"\\{mark}")
    return flat
