"""Scoring predictions for INSCIT: what `finegrained evaluate-inscit` runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from finegrained_lab.published.inscit.data import INSCIT_DATA, read_known_inscit, turns_of
from finegrained_lab.published.inscit.predictions import (
    BASELINES,
    CitedSentences,
    ScoredTurn,
    bleu_counts,
    bleu_of_counts,
    mean_percent,
    most_frequent,
    read_cited,
    read_predictions,
    read_retrieved,
    responses_bleu,
    retrieval_scores,
    scored_turn,
    type_scores,
)
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed
from finegrained_rlhf.inscit.asking.measures import citation_counts, citation_measures
from finegrained_rlhf.inscit.conversation import RESPONSE_TYPES
from finegrained_rlhf.metrics.agreement import bootstrap_interval
from finegrained_rlhf.text.tables import PrintFormat, cell, markdown_table

MEASURES = ("pi_f1", "bleu", "rg_f1")


@dataclass(frozen=True, kw_only=True)
class EvaluateInscit(Settings):
    """Score predictions, or a baseline's, against the labels of a file.

    Attributes:
        data: file of conversations with labels.
        predictions: file of predictions in the published format.
        baseline: `last_turn`, in place of predictions.
        train: of a baseline, the file whose most frequent response and evidence it gives in a first turn, as the thesis
            does; None says that nothing was found, as the authors' published figure does.
        retrieved: file of ranked passages, for hit rate and recall; None measures none.
        citations: count what the sentences of predictions cite (`output.sentences`), by a check without a model.
        cutoffs: the k.
        empty: PI-F1 of an empty prediction where a label has no evidence either: 0 as published, or 1.
        draws: samples of the conversations for the 95% intervals; 0 makes none.
        seed: of the draws.
        format: `table`, or `json` for one JSON document.
        output: JSON file for the scores; None writes none.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    predictions: InputFile | None = None
    baseline: str | None = None
    train: InputFile | None = None
    retrieved: InputFile | None = None
    citations: bool = False
    cutoffs: Sequence[int] = (20, 50)
    empty: int = 0
    draws: int = 1000
    seed: Seed = 0
    format: PrintFormat = "table"
    output: OutputFile | None = None
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def __post_init__(self) -> None:
        if (self.predictions is None) == (self.baseline is None):
            raise ConfigError("predictions: expected predictions=FILE or baseline=NAME, one of the two")
        if self.baseline is not None and self.baseline not in BASELINES:
            raise ConfigError(f"baseline: expected one of {', '.join(BASELINES)}, got {self.baseline!r}")
        if self.train is not None and self.baseline is None:
            raise ConfigError("train: only a baseline reads it; predictions have their first turns")
        if self.citations and self.predictions is None:
            raise ConfigError("citations: a baseline cites nothing; give predictions=FILE")
        if self.empty not in (0, 1) or self.draws < 0 or any(k < 1 for k in self.cutoffs):
            values = f"{self.empty}, {self.draws} and {list(self.cutoffs)}"
            raise ConfigError(f"expected empty 0 or 1, draws from 0, cutoffs from 1; got {values}")

    def run(self) -> dict[str, Any]:
        """Read, score, print.

        Raises:
            DataError: a file is missing or damaged, or predictions are not those of these turns.
        """
        turns = turns_of(read_known_inscit(self.data, self.known_passages).conversations)
        if self.predictions is not None:
            predictions = read_predictions(self.predictions, turns)
        else:
            first = None
            if self.train is not None:
                first = most_frequent(turns_of(read_known_inscit(self.train, self.known_passages).conversations))
            predictions = BASELINES[str(self.baseline)](turns, first)
        scored = [scored_turn(turn, predictions[turn.key], self.empty) for turn in turns]
        scores = inscit_scores(scored, self.draws, self.seed)
        if self.retrieved is not None:
            scores["retrieval"] = retrieval_scores(turns, read_retrieved(self.retrieved, turns), self.cutoffs)
        if self.citations:
            scores["citations"] = citation_scores(read_cited(str(self.predictions)))
        if self.output is not None:
            write_json(self.output, scores)
        print(json.dumps(scores, indent=2) if self.format == "json" else inscit_score_tables(scores))
        return scores


def citation_scores(turns: Iterable[CitedSentences]) -> dict[str, Any]:
    """ALCE's citation recall and precision of all sentences, in percent, and what says what supports what."""
    found = citation_measures(map(citation_counts, turns))
    shares = {name: None if found[name] is None else 100 * found[name] for name in ("recall", "precision")}
    return {**found, **shares, "judged_by": "a check without a model, no NLI"}


def inscit_scores(scored: Sequence[ScoredTurn], draws: int = 1000, seed: int = 0) -> dict[str, Any]:
    """All scores of predictions: in percent, not rounded; counts are whole numbers.

    Args:
        scored: turns, at least one.
        draws: samples of the conversations for intervals; 0 makes none.
        seed: of the draws.
    """
    score, signature = responses_bleu(scored)
    by_conversation: dict[str, list[ScoredTurn]] = {}
    for one in scored:
        by_conversation.setdefault(one.turn.conversation, []).append(one)
    scores: dict[str, Any] = {
        "conversations": len(by_conversation),
        "turns": len(scored),
        "pi_f1": mean_percent([one.pi_f1 for one in scored]),
        "bleu": score,
        "rg_f1": mean_percent([one.rg_f1 for one in scored]),
        "bleu_signature": signature,
    }
    if draws:
        scores["intervals"] = _intervals(list(by_conversation.values()), draws, seed)
    groups: Mapping[str, Callable[[ScoredTurn], str | None]] = {
        "by_type": lambda one: one.turn.agreed_type,
        "by_place": lambda one: "later" if one.turn.earlier else "first",
        "by_gold_passages": _gold_passages,
    }
    for name, group in groups.items():
        keys = {key for one in scored if (key := group(one)) is not None}
        order = [*(kind for kind in RESPONSE_TYPES if kind in keys), *sorted(keys - set(RESPONSE_TYPES))]
        scores[name] = {key: _part([one for one in scored if group(one) == key]) for key in order}
    if any(one.prediction.response_type is not None for one in scored):
        scores["response_types"] = _response_types(scored)
    return scores


def _gold_passages(one: ScoredTurn) -> str | None:
    """How many passages the labels rest on, where they agree on the number."""
    sizes = {len(label.passages) for label in one.turn.labels}
    return str(next(iter(sizes))) if len(sizes) == 1 else None


def _part(turns: Sequence[ScoredTurn]) -> dict[str, Any]:
    return {
        "turns": len(turns),
        "pi_f1": mean_percent([one.pi_f1 for one in turns]),
        "bleu": responses_bleu(turns)[0],
        "rg_f1": mean_percent([one.rg_f1 for one in turns]),
    }


def _intervals(conversations: Sequence[Sequence[ScoredTurn]], draws: int, seed: int) -> dict[str, list[float | None]]:
    """The 95% interval of each measure, whole conversations drawn again."""
    sums = [
        np.array([len(turns), sum(one.pi_f1 for one in turns), sum(one.rg_f1 for one in turns)])
        for turns in conversations
    ]
    counts = [np.sum([bleu_counts(one) for one in turns], axis=0) for turns in conversations]
    statistics: Mapping[str, Callable[[Sequence[int]], float | None]] = {
        "pi_f1": lambda drawn: _ratio(sums, drawn, 1),
        "bleu": lambda drawn: bleu_of_counts(np.sum([counts[i] for i in drawn], axis=0)),
        "rg_f1": lambda drawn: _ratio(sums, drawn, 2),
    }
    made = {
        name: bootstrap_interval(range(len(conversations)), statistic, draws=draws, seed=seed)
        for name, statistic in statistics.items()
    }
    return {name: [interval.low, interval.high] for name, interval in made.items()}


def _ratio(sums: Sequence[Any], drawn: Iterable[int], column: int) -> float:
    total = np.sum([sums[i] for i in drawn], axis=0)
    return float(100 * total[column] / total[0])


def _response_types(scored: Sequence[ScoredTurn]) -> dict[str, Any]:
    """How well the types that the system names fit, on turns whose labels agree on theirs."""
    rows = [(one.turn.agreed_type, one.prediction.response_type) for one in scored if one.turn.agreed_type is not None]
    return {"turns": len(rows), **type_scores(rows)}


def inscit_score_tables(scores: Mapping[str, Any]) -> str:
    """The scores for people."""
    row = {"turns": str(scores["turns"])}
    for name in MEASURES:
        interval = scores.get("intervals", {}).get(name)
        between = f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval and None not in interval else ""
        row[name] = f"{scores[name]:.1f}{between}"
    parts = [markdown_table([row], list(row)), f"BLEU: {scores['bleu_signature']}"]
    for group in ("by_type", "by_place", "by_gold_passages"):
        rows = [
            {
                group.replace("_", " "): key,
                "turns": str(part["turns"]),
                **{name: f"{part[name]:.1f}" for name in MEASURES},
            }
            for key, part in scores[group].items()
        ]
        if rows:
            parts.append(markdown_table(rows, list(rows[0])))
    for name in ("retrieval", "response_types", "citations"):
        if name in scores:
            shown = {key: cell(value) for key, value in scores[name].items() if not isinstance(value, Mapping)}
            parts.append(markdown_table([shown], list(shown)))
    return "\n".join(parts)
