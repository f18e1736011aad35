"""What a dense retriever learns from, of questions in dialogues: a query of each, and the passage it should find.

Writes what `finegrained train-dpr` reads. Source: thesis, table 4.9, where the retriever is trained as well, on one
kind of query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.conqrr.data import (
    QueryKind,
    RewriteData,
    RewriteExample,
    as_rewrite_data,
    query_of,
    read_rewrites,
)
from finegrained_rlhf.conqrr.labels import read_labels
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import CorpusPath, IndexPath, InputFile, OutputFile, at_least, harmless
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.jobs import search_all
from finegrained_rlhf.retrieval.protocol import RetrieverConfig
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.training.dpr.records import passage_rows


@dataclass(frozen=True, kw_only=True)
class MakeQuestionDprData(Settings):
    """Write records for a dense retriever; the job of `finegrained make-question-dpr-data`.

    A record has the query that the trained retriever is to be asked with, word for word as
    `finegrained evaluate-rewrites` asks it; the question's labelled passage as positive, or its gold ones;
    `hard_negatives`, what the index finds with the query; and, with labels, the label's negative among the `negatives`.
    No gold passage is a negative. Questions without a query or a positive are left out, and counted.

    Attributes:
        data: the questions: a file in the project's format, or a `RewriteData` of another one.
        index: directory of an index of the corpus.
        corpus: file or directory of the passages.
        output: JSON-lines file.
        labels: file of passage labels (`finegrained label-passages`); None takes the gold passages of the data.
        query: what a question is asked with, as in `query_of`.
        rewrites: file of a system's rewrites, which take the place of `query`; a question without one is left out.
        negatives: at most so many that the index finds; training draws from them.
        batch_size: queries that are searched together.
        retriever: settings that the index must have been built with; by default those that it has.
    """

    data: InputFile | RewriteData
    index: IndexPath
    corpus: CorpusPath
    output: OutputFile
    labels: InputFile | None = None
    query: QueryKind = "context"
    rewrites: InputFile | None = None
    negatives: Annotated[int, at_least(1)] = 30
    batch_size: Annotated[int, at_least(1), harmless] = 64
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)

    def run(self) -> int:
        """Search, look up, write, print one line; returns how many records there are.

        Raises:
            DataError: the data, labels or rewrites are damaged, a label or rewrite is of no question of the data, no
                question has both a query and a positive, there is no finished index, or a passage is not in the corpus.
        """
        data = as_rewrite_data(self.data)
        examples = data.read().examples
        positives, others = self._passages(examples)
        queries = self._queries(examples)
        questions = [one for one in examples if queries.get(one.id, "").strip() and positives.get(one.id)]
        if not questions:
            raise DataError("no question has both a query and a passage to find", file=data.path)
        never = {one.id: {*one.gold, *positives[one.id]} for one in questions}
        room = self.negatives + max(map(len, never.values()))
        texts = [queries[one.id] for one in questions]
        results = search_all(self.retriever.open(Path(self.index)), texts, room, self.batch_size)
        hard = {one.id: [hit.id for hit in hits] for one, hits in zip(questions, results, strict=True)}
        used = (name for one in questions for name in (*positives[one.id], *others.get(one.id, ()), *hard[one.id]))
        known = Corpus(self.corpus).find(frozenset(used))

        def negatives(one: RewriteExample, names: Sequence[str]) -> list[str]:
            return [name for name in names if name not in never[one.id] and known[name].text.strip()][: self.negatives]

        rows = [
            {
                "id": one.id,
                "query": queries[one.id],
                "positives": passage_rows(positives[one.id], known),
                "hard_negatives": passage_rows(negatives(one, hard[one.id]), known),
                "negatives": passage_rows(negatives(one, others.get(one.id, ())), known),
            }
            for one in questions
        ]
        write_jsonl(self.output, rows)
        missing = Counter("query" if positives.get(one.id) else "passage to find" for one in examples)
        missing.subtract("query" for _ in questions)
        left_out = ", ".join(f"{count} without a {what}" for what, count in sorted(missing.items()) if count)
        print(f"{len(rows)} of {len(examples)} questions{left_out and f' ({left_out})'} -> {self.output}")
        return len(rows)

    def _passages(
        self, examples: Sequence[RewriteExample]
    ) -> tuple[Mapping[str, Sequence[str]], Mapping[str, Sequence[str]]]:
        """By question: what should be found, and what should not."""
        if self.labels is None:
            return {one.id: one.gold for one in examples}, {}
        labels = read_labels(self.labels)
        _check_known(labels, examples, self.labels)
        chosen = {name: (label.positive,) for name, label in labels.items()}
        return chosen, {name: (label.negative,) for name, label in labels.items()}

    def _queries(self, examples: Sequence[RewriteExample]) -> Mapping[str, str]:
        if self.rewrites is None:
            return {one.id: text for one in examples if (text := query_of(one, self.query)) is not None}
        rewrites = read_rewrites(self.rewrites)
        _check_known(rewrites, examples, self.rewrites)
        return rewrites


def _check_known(names: Mapping[str, object], examples: Sequence[RewriteExample], path: str) -> None:
    strange = names.keys() - {one.id for one in examples}
    if strange:
        raise DataError(f"is of no question of the data ({len(strange)} in all)", file=path, record=min(strange))
