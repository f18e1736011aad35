"""Searching for the turns of a conversation, and what a dense retriever learns from.

Ranked passages are written as `read_retrieved` reads them: `[{conv_id, turn_id, ctxs}]`. What a turn is searched
with is a choice to make on dev and to state: the authors publish what BM25 found, not what they searched for. Data
for `finegrained train-dpr` are turns with their evidence, and passages that BM25 takes for it; each has the title
and the text that the corpus gives it, since that is what an index encodes; white space in the text is collapsed,
which a BERT does not see. Source: thesis, section 5.3; INSCIT's DPR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.published.inscit.data import (
    INSCIT_DATA,
    InscitTurn,
    corpus_passages,
    read_inscit,
    read_known_inscit,
    turns_of,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.markers import CorpusPath, IndexPath, InputFile, OutputFile, at_least, harmless
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inscit.conversation import DenseQuery, EvidenceQuery, evidence_query, read_turns
from finegrained_rlhf.retrieval.jobs import search_all
from finegrained_rlhf.retrieval.protocol import Hit, RetrieverConfig
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.training.dpr.records import passage_rows


@dataclass(frozen=True, kw_only=True)
class RetrieveEvidence(Settings):
    """Search an index for every turn; the job of `finegrained retrieve-evidence`.

    Attributes:
        data: file of conversations.
        index: directory of the index.
        output: JSON file of ranked passages, `[{conv_id, turn_id, ctxs: [{id, score}]}]`.
        query: what is searched for (`evidence_query`).
        k: passages a turn.
        batch_size: queries that are searched together.
        retriever: settings that the index must have been built with; by default those that it has.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    index: IndexPath
    output: OutputFile
    query: EvidenceQuery = "context"
    k: Annotated[int, at_least(1)] = 100
    batch_size: Annotated[int, at_least(1), harmless] = 64
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> int:
        """Search, write, print one line; returns how many turns there are.

        Raises:
            DataError: the data is damaged, or there is no finished index.
        """
        turns = turns_of(read_known_inscit(self.data, self.known_passages).conversations)
        retriever = self.retriever.open(Path(self.index))
        queries = [evidence_query(turn.context, self.query) for turn in turns]
        results = search_all(retriever, queries, self.k, self.batch_size)
        write_retrieved(self.output, turns, results)
        print(f"{len(turns)} turns, {self.k} passages at most -> {self.output}")
        return len(turns)


def write_retrieved(path: str | Path, turns: Sequence[InscitTurn], results: Sequence[Sequence[Hit]]) -> None:
    """Write ranked passages of turns as `read_retrieved` reads them."""
    rows = [
        {
            "conv_id": turn.conversation,
            "turn_id": turn.number,
            "ctxs": [{"id": hit.id, "score": float(hit.score)} for hit in hits],
        }
        for turn, hits in zip(turns, results, strict=True)
    ]
    write_json(path, rows)


@dataclass(frozen=True, kw_only=True)
class MakeDprData(Settings):
    """Write records for a dense retriever; the job of `finegrained make-dpr-data`.

    A record has utterances of a turn; the evidence of all its labels as positives, the first label's first;
    `hard_negatives`, what BM25 finds with the text of its first piece of evidence; and `negatives`, what it finds with
    the query. Neither a gold passage of the turn nor one without text is among them. Turns without evidence are left
    out.

    Attributes:
        data: file of conversations.
        index: directory of a lexical index of the corpus.
        corpus: file or directory of the passages.
        output: JSON-lines file.
        store: directory of the corpus's `PassageStore`; None reads the corpus once from its beginning.
        query: what is searched for (`evidence_query`).
        turns: utterances of a record, all (`turns`) or the last three (`recent_turns`): the query that the trained
            retriever is asked with (`RetrieveEvidence.query`).
        negatives: at most so many of each kind; training draws from them.
        batch_size: queries that are searched together.
        retriever: settings that the index must have been built with; by default those that it has.
    """

    data: InputFile
    index: IndexPath
    corpus: CorpusPath
    output: OutputFile
    store: InputFile | None = None
    query: EvidenceQuery = "context"
    turns: DenseQuery = "turns"
    negatives: Annotated[int, at_least(1)] = 30
    batch_size: Annotated[int, at_least(1), harmless] = 64
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> int:
        """Search, look up, write, print one line; returns how many records there are.

        Raises:
            DataError: the data is damaged, no turn has evidence, there is no finished index, or a passage is not in the
                corpus.
        """
        everything = turns_of(read_inscit(self.data).conversations)
        turns = [turn for turn in everything if turn.gold]
        if not turns:
            raise DataError("no turn has evidence", file=self.data)
        retriever = self.retriever.open(Path(self.index))
        gold = corpus_passages({name for turn in turns for name in turn.gold}, self.corpus, self.store)
        room = self.negatives + max(len(turn.gold) for turn in turns)
        groundings = [gold[turn.gold[0]].text for turn in turns]
        hard = search_all(retriever, groundings, room, self.batch_size)
        queries = [evidence_query(turn.context, self.query) for turn in turns]
        other = search_all(retriever, queries, room, self.batch_size)
        negatives = {hit.id for hits in (*hard, *other) for hit in hits} - gold.keys()
        known = gold | corpus_passages(negatives, self.corpus, self.store)
        near = [self._negatives(turn, hits, known) for turn, hits in zip(turns, hard, strict=True)]
        far = [self._negatives(turn, hits, known) for turn, hits in zip(turns, other, strict=True)]
        rows = [
            {
                "id": turn.name,
                "turns": list(read_turns(turn.context, self.turns)),
                "positives": passage_rows(turn.gold, known),
                "hard_negatives": passage_rows(one, known),
                "negatives": passage_rows(two, known),
            }
            for turn, one, two in zip(turns, near, far, strict=True)
        ]
        write_jsonl(self.output, rows)
        print(f"{len(rows)} of {len(everything)} turns, the others have no evidence -> {self.output}")
        return len(rows)

    def _negatives(self, turn: InscitTurn, hits: Sequence[Hit], known: Mapping[str, Passage]) -> list[str]:
        gold = set(turn.gold)
        return [hit.id for hit in hits if hit.id not in gold and known[hit.id].text.strip()][: self.negatives]
