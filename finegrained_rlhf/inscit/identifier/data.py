"""INSCIT as dialogues for DIALKI: candidates as passages of one span, and what the turns rest on.

Writes the lines of `dialki/readers/jsonl.py`. Source: thesis, section 5.4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import CorpusPath, InputFile, OutputFile, at_least
from finegrained_rlhf.dialki.data import parse_dialogue, write_dialogues
from finegrained_rlhf.inscit.data.ids import unique, with_gold
from finegrained_rlhf.inscit.data.passages import check_corpus_keys, passages_by_id, read_known_inscit
from finegrained_rlhf.inscit.data.reading import INSCIT_DATA
from finegrained_rlhf.inscit.data.records import EvidencePassage, InscitTurn, turns_of
from finegrained_rlhf.inscit.evaluation.predictions import read_retrieved
from finegrained_rlhf.inscit.identifier.candidates import candidate_ids, candidate_recall
from finegrained_rlhf.text.tables import cell, markdown_table

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
            "gold": [_span(place[name]) for name in gold if name in place],
            "also_right": sorted(place[name] for name in frozenset(turn.gold).difference(gold) if name in place),
            "response": turn.labels[0].response,
        }
        try:
            parse_dialogue(row)
        except DataError as error:
            raise error.at(file=self.data, record=turn.name) from None
        return row


def asked_row(
    name: str,
    context: Sequence[str],
    earlier: Sequence[Sequence[EvidencePassage]],
    candidates: Sequence[EvidencePassage],
) -> dict[str, Any]:
    """A dialogue to be answered, as a line of `dialki/readers/jsonl.py` without its gold.

    Args:
        name: of the turn.
        context: what was said, the user first and last.
        earlier: the evidence of each agent turn, oldest first.
        candidates: passages of one span each; what an agent turn rests on is told where it is among them.
    """
    place = {passage.id: number for number, passage in enumerate(candidates)}
    turns: list[dict[str, Any]] = []
    for number, text in enumerate(context):
        evidence = unique(passage.id for passage in earlier[number // 2]) if number % 2 else []
        labels = [_span(place[one]) for one in evidence if one in place]
        turns.append({"role": "agent" if number % 2 else "user", "text": text, "knowledge": labels or None})
    return {"id": name, "turns": turns, "passages": [_passage(one) for one in candidates]}


def _span(passage: int) -> dict[str, int]:
    return {"passage": passage, "begin": 0, "end": 0}


def _passage(one: EvidencePassage) -> dict[str, Any]:
    return {"id": one.id, "title": "|".join(one.titles), "spans": [" ".join(one.text.split())]}
