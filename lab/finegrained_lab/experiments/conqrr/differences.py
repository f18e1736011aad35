"""How far one system's queries find more than another's, with intervals over dialogues, for a results page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.intervals import difference_interval
from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, as_rewrite_data
from finegrained_rlhf.conqrr.measures import grades_of, judgements_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.retrieval.ranking import RankingMetrics
from finegrained_rlhf.retrieval.runs import read_trec_run
from finegrained_rlhf.text.tables import markdown_table


@dataclass(frozen=True)
class RewriteDifferences(Settings):
    """Which systems a page compares in MRR.

    Attributes:
        data: the questions that were evaluated: a file in the project's format, or a `RewriteData` of another one.
        runs: directories of the TREC runs that `EvaluateRewrites` wrote, by the heading of the evaluation.
        pairs: names of two systems each: the second is taken away from the first.
    """

    data: InputFile | RewriteData
    runs: Mapping[str, InputFile]
    pairs: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if not self.pairs or any(len(pair) != 2 for pair in self.pairs):
            raise ConfigError("differences.pairs: expected pairs of systems, [[ours, theirs], …]")

    def read(self) -> dict[str, list[dict[str, Any]]]:
        """By heading an object a pair: `ours`, `theirs`, `mrr` of both, `ratio`, `difference`, its 95% `interval`.

        Dialogues are drawn again, all their questions together. `ratio` is None where theirs found nothing.

        Raises:
            DataError: a broken or missing run, or no question with a gold passage.
        """
        examples = as_rewrite_data(self.data).read().examples
        if not any(example.gold for example in examples):
            raise DataError("no question has a gold passage: there is nothing to compare", field="gold")
        tables: dict[str, list[dict[str, Any]]] = {}
        for heading, directory in self.runs.items():
            names = dict.fromkeys(name for pair in self.pairs for name in pair)
            sums = {name: _by_dialogue(examples, Path(directory) / f"{name}.trec") for name in names}
            tables[heading] = [_difference(ours, theirs, sums) for ours, theirs in self.pairs]
        return tables


def mrr_differences_page(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """The section of a page.

    Args:
        rows: what `RewriteDifferences.read` gave for one heading.
        names: what the page calls systems.
    """
    table = [
        {
            "query": names.get(row["ours"], row["ours"]),
            "against": names.get(row["theirs"], row["theirs"]),
            "MRR": row["mrr"][0],
            "its MRR": row["mrr"][1],
            "ratio": "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
            "difference": f"{row['difference']:+.3f} [{row['interval'][0]:+.3f}, {row['interval'][1]:+.3f}]",
        }
        for row in rows
    ]
    return f"### Differences in MRR, 95% intervals over dialogues\n\n{markdown_table(table, [*table[0]]).strip()}"


def _by_dialogue(examples: Sequence[RewriteExample], run: Path) -> tuple[list[float], list[float]]:
    """Sum of the reciprocal ranks and number of the questions with gold, by dialogue in the order of the data."""
    turns = [example.id for example in examples]
    values = RankingMetrics().of_turns(read_trec_run(run), judgements_of(examples), turns, grades_of(examples))
    sums: dict[str, list[float]] = {}
    for example in (example for example in examples if example.id in values):
        total = sums.setdefault(example.dialogue, [0.0, 0.0])
        total[0] += values[example.id]["mrr"]
        total[1] += 1
    reciprocal, of = zip(*sums.values(), strict=True)
    return list(reciprocal), list(of)


def _difference(ours: str, theirs: str, sums: Mapping[str, tuple[list[float], list[float]]]) -> dict[str, Any]:
    mrr = [sum(gained) / sum(of) for gained, of in (sums[ours], sums[theirs])]
    return {
        "ours": ours,
        "theirs": theirs,
        "mrr": mrr,
        "ratio": mrr[0] / mrr[1] if mrr[1] else None,
        "difference": mrr[0] - mrr[1],
        "interval": list(difference_interval(sums[ours], sums[theirs])),
    }
