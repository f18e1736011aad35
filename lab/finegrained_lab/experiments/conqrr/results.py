"""A results file and its page from evaluations of rewrites: systems beside each other, by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finegrained_lab.experiments.conqrr.differences import RewriteDifferences, mrr_differences_page
from finegrained_lab.experiments.conqrr.samples import SampleRewrites, samples_page
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.text.tables import markdown_table

COLUMNS = {"mrr": "MRR", "hit_rate@10": "R@10", "hit_rate@100": "R@100"}
"""The thesis's metrics and what its tables call them; R@k is whether a gold passage is among the first k."""
_WORDING = {"rouge1": "ROUGE-1", "repeated_bigrams": "repeats a bigram", "cut": "cut off"}
_GROUPING_TITLES = {
    "topic": "MRR by topic",
    "questions": "MRR by the number of questions in the dialogue so far",
    "topic and questions": "MRR by topic and number of questions",
    "source": "MRR by the source of the dialogue",
}


@dataclass(frozen=True)
class RewriteTable(Results):
    """A job: evaluations in one results file with a page.

    Attributes:
        evaluations: results files of `EvaluateRewrites`, by the heading that each gets.
        title: of the page.
        about: what was measured on what, in a few sentences.
        rows: what the page calls systems, by the name that the results files have.
        samples: rewrites to show side by side; None shows none.
        differences: systems to compare with intervals; None compares none.
    """

    evaluations: Mapping[str, InputFile]
    title: str
    about: str
    rows: Mapping[str, str] = field(default_factory=dict)
    samples: SampleRewrites | None = None
    differences: RewriteDifferences | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.evaluations:
            raise ConfigError("evaluations: expected at least one results file")

    def run(self) -> dict[str, Any]:
        """Write results and page, print the page.

        Raises:
            DataError: a results file is missing or is none of `EvaluateRewrites`.
        """
        evaluations = {}
        for name, path in self.evaluations.items():
            evaluations[name] = read_json(path)
            if not isinstance(evaluations[name], dict) or not evaluations[name].get("systems"):
                raise DataError("expected results of finegrained evaluate-rewrites", file=path, field="systems")
        return self.write(
            {
                **self.made_by(),
                "settings": as_config(self),
                "evaluations": evaluations,
                **({} if self.differences is None else {"differences": self.differences.read()}),
                **({} if self.samples is None else {"samples": self.samples.read()}),
            }
        )

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        parts = [self.opening(result, self.title, self.about.strip())]
        for name, evaluation in result["evaluations"].items():
            parts.append(f"## {name}\n\n{_overall(evaluation, self.rows)}")
            if compared := result.get("differences", {}).get(name):
                parts.append(mrr_differences_page(compared, self.rows))
            if groups := _groups(evaluation, self.rows):
                parts.append(groups)
        if result.get("samples"):
            parts.append(samples_page(result["samples"], self.rows))
        return "\n\n".join(parts) + "\n"


def _overall(evaluation: Mapping[str, Any], names: Mapping[str, str]) -> str:
    rows = []
    for system, scores in evaluation["systems"].items():
        metrics = {title: scores["overall"][name] for name, title in COLUMNS.items() if name in scores["overall"]}
        attributes = {"words": scores["tokens"], "overlap": scores["overlap"], "repeats": scores["repeats"]}
        wording = {title: scores[name] for name, title in _WORDING.items() if name in scores}  # not in older files
        rows.append({"query": names.get(system, system), **metrics, **attributes, **wording})
    turns = next(iter(evaluation["systems"].values()))["overall"]["turns"]
    retriever, form = evaluation["retriever"], evaluation["metrics"]["form"]
    return (
        f"{turns:,} questions, {retriever['passages']:,} passages, {retriever['kind']}, {evaluation['k']} hits a "
        f"query, form `{form}`.{_data_read(evaluation.get('data'))}\n\n{markdown_table(rows, [*rows[0]]).strip()}"
    )


def _data_read(report: Mapping[str, Any] | None) -> str:
    """What the file of questions held, by the report of its reader; empty where there is none, as in older files."""
    if report is None:
        return ""
    dialogues, questions, answers = (report[name] for name in ("dialogues", "examples", "answers"))
    counts = f" Read: {dialogues:,} dialogues, {questions:,} questions, {answers:,} with an answer"
    others = {**report["notes"], **report["skipped"]}
    return "; ".join([counts, *(f"{reason}: {count:,}" for reason, count in others.items() if count)]) + "."


def _groups(evaluation: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """MRR by group, and by source the wording too; a grouping with one group, which is the whole, is left out."""
    systems = evaluation["systems"]
    every: Mapping[str, Mapping[str, Mapping[str, Any]]] = next(iter(systems.values()))["groups"]
    parts = []
    for grouping, title in _GROUPING_TITLES.items():
        groups = every.get(grouping, {})
        if len(groups) < 2 or (grouping == "topic and questions" and len(every["topic"]) < 2):
            continue
        turns = {"query": "questions", **{group: group_scores["turns"] for group, group_scores in groups.items()}}
        columns = {title: "mrr"}
        if grouping == "source" and any("tokens" in of for of in groups.values()):  # not in older files
            columns |= {"Words of a query, by source": "tokens", "Overlap with the gold passage, by source": "overlap"}
        for heading, column in columns.items():
            rows = [
                {"query": names.get(name, name), **_of_groups(scores["groups"][grouping], list(groups), column)}
                for name, scores in systems.items()
            ]
            table = markdown_table([turns, *rows], ["query", *groups]).strip()
            parts.append(f"### {heading}\n\n{table}")
    return "\n\n".join(parts)


def _of_groups(by: Mapping[str, Mapping[str, float]], groups: Sequence[str], column: str) -> dict[str, float | None]:
    return {group: by.get(group, {}).get(column) for group in groups}
