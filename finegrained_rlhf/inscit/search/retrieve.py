"""Ranked passages for every turn of a file.

Writes what `read_retrieved` reads: `[{conv_id, turn_id, ctxs}]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import IndexPath, InputFile, OutputFile, at_least, harmless
from finegrained_rlhf.inscit.data.passages import read_known_inscit
from finegrained_rlhf.inscit.data.reading import INSCIT_DATA
from finegrained_rlhf.inscit.data.records import InscitTurn, turns_of
from finegrained_rlhf.inscit.search.queries import EvidenceQuery, evidence_query
from finegrained_rlhf.retrieval.jobs import search_all
from finegrained_rlhf.retrieval.protocol import Hit, RetrieverConfig
from finegrained_rlhf.retrieval.recorded import RecordedConfig


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
