"""What the systems of an evaluation did question by question: rows for a file, and which system is really better.

Also writes the run file of the SCAI-QReCC shared task (`run.json`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import Seed, at_least
from finegrained_rlhf.metrics.significance import holm, paired_test
from finegrained_rlhf.retrieval.runs import Run, in_trec_order
from finegrained_rlhf.text.tables import markdown_table

Values = Mapping[str, Mapping[str, float]]
"""Metrics by question id, of the questions that count."""


@dataclass(frozen=True)
class CompareSystems(Settings):
    """Which systems are tested against which, and how.

    Attributes:
        against: a system that every other one is compared with; None compares all pairs.
        metrics: names of metrics; the p-values of each are corrected for themselves.
        draws: of the randomization test.
        seed: of the draws.
    """

    against: str | None = None
    metrics: Sequence[str] = ("mrr",)
    draws: Annotated[int, at_least(1)] = 10_000
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ConfigError("comparison.metrics: expected at least one metric; comparison=null compares nothing")

    def check(self, systems: Sequence[str], known: Sequence[str]) -> None:
        """Raise ConfigError where `against` is none of the systems, or one of `metrics` is not measured."""
        if self.against is not None and self.against not in systems:
            raise ConfigError(f"comparison.against: expected one of {', '.join(systems)}, got {self.against!r}")
        if strange := [name for name in self.metrics if name not in known]:
            raise ConfigError(f"comparison.metrics: expected some of {', '.join(known)}, got {strange[0]!r}")

    def compared(self, examples: Sequence[RewriteExample], values: Mapping[str, Values]) -> list[dict[str, Any]]:
        """The tests, dialogues being the clusters: an object a metric and pair, in the order of the systems.

        `p_t_holm` and `p_randomization_holm` are Holm's over all pairs of one metric. Only questions that count for
        both systems are compared.

        Args:
            examples: all questions.
            values: of each system.
        """
        names = list(values)
        pairs = (
            list(combinations(names, 2))
            if self.against is None
            else [(name, self.against) for name in names if name != self.against]
        )
        table: list[dict[str, Any]] = []
        for metric in self.metrics:
            rows = [row for pair in pairs if (row := self._test(examples, values, pair, metric)) is not None]
            for key in ("p_t", "p_randomization"):
                tested = [row for row in rows if row[key] is not None]
                corrected = holm([row[key] for row in tested])
                for row in rows:
                    row[f"{key}_holm"] = None
                for row, value in zip(tested, corrected, strict=True):
                    row[f"{key}_holm"] = value
            table += rows
        return table

    def _test(
        self, examples: Sequence[RewriteExample], values: Mapping[str, Values], pair: tuple[str, str], metric: str
    ) -> dict[str, Any] | None:
        system, against = (values[name] for name in pair)
        both = [example for example in examples if example.id in system and example.id in against]
        if not both:
            return None
        differences = [system[example.id][metric] - against[example.id][metric] for example in both]
        clusters = [example.dialogue for example in both]
        test = paired_test(differences, clusters, draws=self.draws, seed=self.seed)
        return {"metric": metric, "system": pair[0], "against": pair[1], "questions": len(both), **asdict(test)}


def comparison_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of what `CompareSystems.compared` gave; empty without rows."""
    shown = [
        {
            "metric": row["metric"],
            "system": row["system"],
            "against": row["against"],
            "difference": f"{row['difference']:+.3f}",
            "p (t)": _p(row["p_t"]),
            "p (randomization)": _p(row["p_randomization"]),
            "Holm (t)": _p(row["p_t_holm"]),
            "Holm (randomization)": _p(row["p_randomization_holm"]),
        }
        for row in rows
    ]
    return markdown_table(shown, [*shown[0]]) if shown else ""


def _p(value: float | None) -> str:
    return "–" if value is None else "<.0001" if value < 1e-4 else f"{value:.4f}"


def gold_ranks(examples: Sequence[RewriteExample], run: Run) -> dict[str, list[int]]:
    """By question id the ranks, from 1, of the gold passages that its query found, best first, in trec_eval's order."""
    gold = {example.id: set(example.gold) for example in examples}
    return {
        name: [rank for rank, hit in enumerate(in_trec_order(hits), 1) if hit.id in gold.get(name, ())]
        for name, hits in run.items()
    }


def rows_by_question(
    examples: Sequence[RewriteExample],
    queries: Mapping[str, Mapping[str, str]],
    ranks: Mapping[str, Mapping[str, Sequence[int]]],
    values: Mapping[str, Values],
) -> Iterator[dict[str, Any]]:
    """An object a question: `id`, `dialogue`, `turn`, `source`, `question`, `rewrite` (the human's), `gold`, `systems`.

    `systems` has of each system the `query` (None where there is none), the `ranks` of the gold passages that it found,
    best first, from 1, and the `metrics`; None where the question does not count.

    Args:
        examples: all questions.
        queries: of each system, by question id.
        ranks: of each system, as `gold_ranks` gives them.
        values: of each system.
    """
    for example in examples:
        systems = {}
        for name in values:
            of_turn = values[name].get(example.id)
            systems[name] = {
                "query": queries[name].get(example.id),
                "ranks": list(ranks[name].get(example.id, ())),
                "metrics": None if of_turn is None else dict(of_turn),
            }
        yield {
            "id": example.id,
            "dialogue": example.dialogue,
            "turn": example.turn,
            "source": example.source,
            "question": example.question,
            "rewrite": example.rewrite,
            "gold": list(example.gold),
            "systems": systems,
        }


def require_numbered(examples: Sequence[RewriteExample], path: str | Path) -> None:
    """Raise DataError where a conversation has no number, without which the task's evaluator does not take a run."""
    for example in examples:
        if not (example.dialogue.isascii() and example.dialogue.isdigit()):
            problem = f"expected the number of a conversation for a run of SCAI-QReCC, got {example.dialogue!r}"
            raise DataError(problem, file=path, record=example.id, field="dialogue")


def write_scai_run(path: str | Path, examples: Sequence[RewriteExample], queries: Mapping[str, str], run: Run) -> None:
    """Write `run.json`, atomically, with a record for every question, in their order.

    `Model_rewrite` is the query (left out where there is none), `Model_passages` what it found, best first, `{}` where
    that is nothing, so that the question counts as 0 as it does here. There is no `Model_answer`.

    Args:
        path: the file.
        examples: all questions, of conversations with numbers (`require_numbered`).
        queries: by question id.
        run: what they found.
    """
    rows: list[dict[str, Any]] = []
    for example in examples:
        row: dict[str, Any] = {"Conversation_no": int(example.dialogue), "Turn_no": example.turn}
        if example.id in queries:
            row["Model_rewrite"] = queries[example.id]
        row["Model_passages"] = {hit.id: hit.score for hit in in_trec_order(run.get(example.id, ()))}
        rows.append(row)
    write_json(path, rows)
