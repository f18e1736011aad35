"""INSCIT as dialogues for DIALKI: candidate passages, what the turns rest on, and thresholds chosen on given turns.

A candidate is a passage of one span; how much of the evidence is among the candidates is counted. The lines written are
those that DIALKI reads (`dialki/data.py`). Source: thesis, section 5.4.2, and the authors' repository (commit 2319fb8)
for the criterion of the mean number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np

from finegrained_lab.published.inscit.data import (
    INSCIT_DATA,
    InscitTurn,
    check_corpus_keys,
    earlier_ids,
    passages_by_id,
    read_known_inscit,
    turns_of,
    with_gold,
)
from finegrained_lab.published.inscit.predictions import mean_percent, passage_f1, read_retrieved
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import CorpusPath, InputFile, OutputFile, at_least
from finegrained_rlhf.dialki.data import parse_dialogue, write_dialogues
from finegrained_rlhf.dialki.model.search import SelectBy
from finegrained_rlhf.inscit.conversation import EvidencePassage, unique
from finegrained_rlhf.inscit.identifier import SELECTED, EvidenceSelection, asked_row, one_span
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.text.tables import cell, markdown_table


def candidate_ids(turn: InscitTurn, hits: Sequence[Hit], most: int, earlier: bool = True) -> list[str]:
    """The ids of a turn's candidates, each once.

    Args:
        turn: the turn.
        hits: what was retrieved for it, best first.
        most: at most so many.
        earlier: whether the evidence of earlier turns comes before, the oldest turn's first.
    """
    before = earlier_ids(turn, newest_first=False) if earlier else []
    return unique([*before, *(hit.id for hit in hits)])[:most]


def candidate_recall(
    turns: Sequence[InscitTurn], ids: Mapping[str, Sequence[str]], selected: int = SELECTED
) -> dict[str, Any]:
    """How much of the evidence is among the candidates: what bounds an identifier from above.

    Args:
        turns: at least one.
        ids: the candidates of each turn, by its name.
        selected: most passages that may be selected of them.

    Returns:
        `turns`; `turns_with_gold`, over which `hit_rate` (any gold passage of any label is a candidate) and `recall`
        (share of the gold passages of all labels that are) are means; over all turns `passages` (candidates a turn) and
        `pi_f1_bound`, the PI-F1 of who selects a label's evidence wherever it is a candidate. Percent; None of nothing.
    """
    hits, recalls, bounds = [], [], []
    for turn in turns:
        gold, known = frozenset(turn.gold), frozenset(ids[turn.name])
        if gold:
            hits.append(float(bool(gold & known)))
            recalls.append(len(gold & known) / len(gold))
        reached = [(min(len(label.passages & known), selected), len(label.passages)) for label in turn.labels]
        bounds.append(max(2 * covered / (covered + size) if covered else 0.0 for covered, size in reached))
    return {
        "turns": len(turns),
        "turns_with_gold": len(hits),
        "passages": sum(len(ids[turn.name]) for turn in turns) / len(turns),
        "hit_rate": mean_percent(hits),
        "recall": mean_percent(recalls),
        "pi_f1_bound": mean_percent(bounds),
    }


TuneBy = Literal["repository", "pi_f1"]
"""How γ is chosen: a mean number of passages of 1.5 on a grid of logits, or the highest PI-F1."""
MEAN_PASSAGES = 1.5
GRID = tuple(step / 10 for step in range(50))
_QUANTILES = 200


def check_tune_by(value: str, score: SelectBy) -> None:
    """Raise ConfigError for a criterion that does not exist, or that other scores are made for."""
    if value not in get_args(TuneBy):
        raise ConfigError(f"tune: expected null or one of {', '.join(get_args(TuneBy))}, got {value!r}")
    if value == "repository" and score != "logits":
        raise ConfigError(f"tune: the repository's grid is one of logits, expected score=logits, got {score}")


def tuned_selection(
    scored: Sequence[Mapping[str, float]],
    labels: Sequence[Sequence[Collection[str]]],
    tune: TuneBy,
    score: SelectBy = "logits",
    most: Annotated[int, at_least(1)] = SELECTED,
    allow_empty: bool = False,
) -> EvidenceSelection:
    """The thresholds that a criterion chooses on some turns.

    `repository`: of 0.0, 0.1, … 4.9 the γ whose mean number of passages is nearest to 1.5, the lowest such. `pi_f1`: of
    200 quantiles of the scores the γ with the highest PI-F1, the highest such.

    Args:
        scored: of each turn, at least one, the score of each candidate by its id.
        labels: the evidence of each label of each turn.
        tune: the criterion of γ.
        score: what the scores are.
        most: passages a turn.
        allow_empty: choose `empty` as well, by the highest PI-F1 where nothing selected for a label without evidence
            counts 1; with `pi_f1` together with γ, else after it. Of equals the one that empties the fewest turns.
    """
    check_tune_by(tune, score)
    turns = list(zip(scored, labels, strict=True))
    tops = np.array([max(row.values()) for row in scored])
    nothing = np.array([float(any(not evidence for evidence in own)) for own in labels])

    def judged(threshold: float) -> tuple[float, EvidenceSelection]:
        one = EvidenceSelection(score, threshold, None, most)
        f1 = np.array([max(passage_f1(one.of(row), evidence) for evidence in own) for row, own in turns])
        empty, value = _best_empty(tops, nothing, f1) if allow_empty else (None, float(f1.mean()))
        return value, EvidenceSelection(score, threshold, empty, most)

    if tune == "repository":
        return judged(_nearest_mean(scored, most))[1]
    scores = np.array([value for row in scored for value in row.values()])
    quantiles = np.quantile(scores, np.linspace(0, 1, min(_QUANTILES, len(scores))))
    best = max((judged(float(value)) for value in np.unique(quantiles)), key=lambda pair: (pair[0], pair[1].threshold))
    return best[1]


def _nearest_mean(scored: Sequence[Mapping[str, float]], most: int) -> float:
    """The first γ of the grid at which the mean number of passages is nearest to `MEAN_PASSAGES`."""

    def distance(threshold: float) -> float:
        selection = EvidenceSelection(threshold=threshold, most=most)
        return abs(sum(len(selection.of(row)) for row in scored) - MEAN_PASSAGES * len(scored))

    return min(GRID, key=distance)


def _best_empty(tops: Any, nothing: Any, f1: Any) -> tuple[float | None, float]:
    """The best second threshold, and the mean PI-F1 with it.

    Args:
        tops: float [n], the highest score of each turn.
        nothing: float [n], PI-F1 of an empty set.
        f1: float [n], PI-F1 of what is selected otherwise.
    """
    order = np.argsort(tops, kind="stable")
    tops, gain = tops[order], (nothing - f1)[order]
    sums = [0.0, *accumulate(gain.tolist())]
    cuts = [0, *(k for k in range(1, len(tops) + 1) if k == len(tops) or tops[k] > tops[k - 1])]
    cut = max(cuts, key=lambda k: (round(sums[k], 12), -k))
    return (float(tops[cut - 1]) if cut else None), float((f1.sum() + sums[cut]) / len(tops))


GoldEvidence = Literal["first", "label", "all"]
"""What is gold: the first evidence of the first label, all of it, or the evidence of all labels."""


@dataclass(frozen=True, kw_only=True)
class MakeIdentifierData(Settings):
    """Write dialogues that `finegrained train-dialki` and `finegrained identify-evidence` read; the job of
    `finegrained make-identifier-data`.

    A dialogue has the name of its turn. Its passages are the candidates, one span each. An agent turn is labelled with
    its evidence among them, a user turn with nothing. A turn without gold among its candidates is kept: DIALKI leaves
    it out of training, and answers it.

    Attributes:
        data: file of conversations.
        retrieved: file of ranked passages (`[{conv_id, turn_id, ctxs: [{id, score}]}]`).
        output: JSON-lines file.
        passages: at most so many candidates.
        earlier: whether the evidence of earlier turns comes before what was retrieved, the oldest turn's first.
        gold: `first`, the first evidence of the first label; `label`, all of it; `all`, the evidence of all labels.
            Evidence that is not gold by this is never drawn as wrong.
        add_gold: put gold among the candidates where it is not, in place of the last others; for training alone.
        corpus: of the passages that the data does not hold.
        store: directory of the corpus's `PassageStore`; None reads the corpus once from its beginning.
        results: JSON file for the recall of the candidates; None writes none.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    retrieved: InputFile
    output: OutputFile
    passages: Annotated[int, at_least(1)] = 50
    earlier: bool = True
    gold: GoldEvidence = "first"
    add_gold: bool = False
    corpus: CorpusPath | None = None
    store: InputFile | None = None
    results: OutputFile | None = None
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def __post_init__(self) -> None:
        check_corpus_keys(self.corpus, self.store)

    def run(self) -> dict[str, Any]:
        """Read, choose, write, print how much of the evidence is among the candidates.

        Returns:
            `candidate_recall`, before gold is added, of the candidates with the evidence of earlier turns
            (`earlier_and_retrieved`) and without it (`retrieved`).

        Raises:
            DataError: a file is damaged, lacks a turn, or a passage is nowhere.
        """
        turns = turns_of(read_known_inscit(self.data, self.known_passages).conversations)
        run = read_retrieved(self.retrieved, turns)
        lists = {
            name: {turn.name: candidate_ids(turn, run[turn.name], self.passages, earlier) for turn in turns}
            for name, earlier in (("earlier_and_retrieved", True), ("retrieved", False))
        }
        ids = dict(lists["earlier_and_retrieved" if self.earlier else "retrieved"])
        if self.add_gold:
            ids = {turn.name: with_gold(ids[turn.name], self._gold(turn), self.passages) for turn in turns}
        known = passages_by_id({one for row in ids.values() for one in row}, turns, self.corpus, self.store)
        rows = [self._row(turn, ids[turn.name], known) for turn in turns]
        write_dialogues(self.output, rows)
        recall = {name: candidate_recall(turns, row) for name, row in lists.items()}
        if self.results is not None:
            write_json(self.results, recall)
        table = [
            {"candidates": name, **{key: cell(value) for key, value in row.items()}} for name, row in recall.items()
        ]
        print(markdown_table(table, list(table[0])))
        labelled = sum(bool(row["gold"]) for row in rows)
        print(f"{len(rows)} dialogues, {labelled} with gold among their candidates -> {self.output}")
        return recall

    def _gold(self, turn: InscitTurn) -> list[str]:
        """The ids that are gold, each once."""
        labels = turn.labels if self.gold == "all" else turn.labels[:1]
        ids = unique(passage.id for label in labels for passage in label.evidence)
        return ids[:1] if self.gold == "first" else ids

    def _row(self, turn: InscitTurn, ids: Sequence[str], known: Mapping[str, EvidencePassage]) -> dict[str, Any]:
        if not ids:
            raise DataError("has no candidate: nothing was retrieved", file=self.retrieved, record=turn.name)
        for name in ids:
            if name not in known:
                problem = f"passage {name!r} is not in the data: name the corpus that it was retrieved from"
                raise DataError(problem, file=self.retrieved, record=turn.name, field="corpus")
        place = {name: number for number, name in enumerate(ids)}
        gold = self._gold(turn)
        row = {
            **asked_row(turn.name, turn.context, turn.earlier, [known[name] for name in ids]),
            "gold": [one_span(place[name]) for name in gold if name in place],
            "also_right": sorted(place[name] for name in frozenset(turn.gold).difference(gold) if name in place),
            "response": turn.labels[0].response,
        }
        try:
            parse_dialogue(row)
        except DataError as error:
            raise error.at(file=self.data, record=turn.name) from None
        return row
