"""Rewriting files of questions, or one dialogue from the command line: the job behind `scripts/rewrite.py`.

Knows rewriters, readers, retrievers and the lines that are written. Does not know models.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.conqrr.queries import read_rewrites
from finegrained_rlhf.conqrr.readers.reading import FORMATS, Format, RewriteData
from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.conqrr.rewriting.best_of import BestOfRank, best_by_rank
from finegrained_rlhf.conqrr.rewriting.config import RewritingConfig, WrittenRewrite, words_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.jobs import hit_row
from finegrained_rlhf.retrieval.protocol import Hit, Retriever, RetrieverConfig
from finegrained_rlhf.retrieval.recorded import RecordedConfig
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, progress_bar, writable
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes

if TYPE_CHECKING:
    from finegrained_rlhf.conqrr.rewriting.rewriter import QueryRewriter


logger = logging.getLogger(__name__)

_SEARCHED_AT_ONCE = 64
_CLOSE = 0.25
"""Words between two mean lengths that count as the same."""


def last_question(turns: Sequence[str]) -> RewriteExample:
    """The last question of a dialogue.

    Args:
        turns: question, answer, question, answer, …, question, oldest first; an answer may be empty.

    Raises:
        ConfigError: the last turn is no question.
    """
    if len(turns) % 2 == 0:
        raise ConfigError(f"turns: expected question, answer, …, question, got {len(turns)} turns")
    try:
        return RewriteExample("dialogue", "dialogue", len(turns) // 2 + 1, tuple(turns[:-1]), turns[-1])
    except DataError as error:
        raise ConfigError(f"turns: {error.problem}") from None


@dataclass(frozen=True)
class Rewrite:
    """Rewrite questions in dialogues so that they stand alone, and perhaps search with the rewrites.

    Attributes:
        checkpoint: run directory, checkpoint or model directory of a query rewriter.
        input: questions: a file, or a `RewriteData`, which may name more than a format; None rewrites `turns`.
        format: of the file `input`.
        turns: without `input`: one dialogue, oldest turn first, its last question last.
        output: JSON lines, `-` for standard output: `{id, rewrite, finished}`, with an index also
            `passages: [{id, score}, …]`, best first, with `corpus` also their `title` and `text`.
        rewriting: how rewrites are decoded.
        match: file of other rewrites (`{id, rewrite}` a line); the α of the beam search is then the one whose
            rewrites have their mean length in words.
        by_rank: draw several rewrites of each question and write the one whose search in `index` ranks a gold passage
            best: an upper bound, since it reads the answer key; None decodes as `rewriting` says.
        index: directory of an index to search with the rewrites.
        retriever: settings that the index must have been built with; by default those that it has.
        corpus: file or directory of the index's corpus.
        k: passages a question.
        processes: precision and CPU threads.
    """

    checkpoint: ModelPath
    input: str | RewriteData | None = None
    format: Format = "jsonl"
    turns: Sequence[str] = ()
    output: str = STANDARD_OUTPUT
    rewriting: RewritingConfig = field(default_factory=RewritingConfig)
    match: str | None = None
    by_rank: BestOfRank | None = None
    index: str | None = None
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)
    corpus: str | None = None
    k: int = 10
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if self.input is not None and self.turns:
            raise ConfigError("input: expected either input or turns")
        if self.format not in FORMATS or (self.format != "jsonl" and not isinstance(self.input, str)):
            raise ConfigError(f"format: expected one of {', '.join(FORMATS)}, of a file input; got {self.format!r}")
        if self.k < 1:
            raise ConfigError(f"k: expected at least 1, got {self.k}")
        if self.corpus is not None and self.index is None:
            raise ConfigError("corpus: expected an index too")
        if self.by_rank is not None and (self.index is None or self.rewriting.beams > 1):
            raise ConfigError("by_rank: expected an index, and rewriting.beams=1: rewrites are sampled")
        if self.match is not None and (self.rewriting.beams == 1 or self.rewriting.alpha):
            raise ConfigError("match: expected rewriting.beams above 1, and no rewriting.alpha: it is found")

    def run(self) -> None:
        """Rewrite, search and write.

        Raises:
            ConfigError: no question is given, or started in several processes.
            ModelError: no readable model.
            DataError: broken questions, index or corpus; nothing is written then.
        """
        from finegrained_rlhf.conqrr.rewriting.rewriter import QueryRewriter

        processes = Processes(self.processes)
        if processes.count > 1:
            raise ConfigError("rewrite.py runs in one process")
        examples = self._examples()
        retriever = None if self.index is None else self.retriever.open(Path(self.index))
        rewriter = QueryRewriter.load(self.checkpoint, processes, self.rewriting)
        written = self._rewrites(rewriter, examples, retriever)
        rewrites = [rewrite.text for rewrite in written]
        found: list[list[Hit]] | None = None
        if retriever is not None:
            found = []
            for start in range(0, len(rewrites), _SEARCHED_AT_ONCE):
                found += retriever.search(rewrites[start : start + _SEARCHED_AT_ONCE], self.k)
        rows = list(self._rows(examples, written, found))
        with writable(self.output) as stream:
            for row in rows:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        if self.output != STANDARD_OUTPUT:
            mean = sum(map(words_of, rewrites)) / len(rewrites)
            print(f"{len(rewrites)} questions rewritten, {mean:.1f} words each -> {self.output}")

    def _examples(self) -> Sequence[RewriteExample]:
        if self.input is not None:
            data = RewriteData(self.input, self.format) if isinstance(self.input, str) else self.input
            return data.read().examples
        if not self.turns:
            raise ConfigError("give input=FILE, or turns=['question','answer','question']")
        return [last_question(self.turns)]

    def _rewrites(
        self, rewriter: QueryRewriter, examples: Sequence[RewriteExample], retriever: Retriever | None
    ) -> list[WrittenRewrite]:
        from finegrained_rlhf.conqrr.rewriting.rewriter import matching_alpha
        from finegrained_rlhf.rollout.beam import best

        shown = len(examples) > self.rewriting.batch_size
        with progress_bar("rewriting", len(examples), "question", shown) as bar:
            if self.by_rank is not None and retriever is not None:
                drawn = rewriter.sample(examples, self.by_rank.decoding(), self.by_rank.seed, bar.update)
                texts = [[one.text for one in group] for group in drawn]
                best_ones = best_by_rank(examples, texts, retriever, self.by_rank.depth)
                return [group[number] for group, number in zip(drawn, best_ones, strict=True)]
            if self.match is None:
                return rewriter.write(examples, bar.update)
            others = read_rewrites(self.match)
            searched = rewriter.search(examples, bar.update)
        wanted = sum(map(words_of, others.values())) / len(others)
        alpha = matching_alpha(rewriter, searched, wanted)
        rewrites = [rewriter.written(best(hypotheses, alpha)) for hypotheses in searched]
        mean = sum(words_of(rewrite.text) for rewrite in rewrites) / len(rewrites)
        level = logging.WARNING if abs(mean - wanted) > _CLOSE else logging.INFO  # beams may not be long enough
        logger.log(level, "alpha = %.4f gives %.2f words a rewrite; %s has %.2f", alpha, mean, self.match, wanted)
        return rewrites

    def _rows(
        self,
        examples: Sequence[RewriteExample],
        rewrites: Sequence[WrittenRewrite],
        found: Sequence[Sequence[Hit]] | None,
    ) -> Iterator[dict[str, Any]]:
        passages: dict[str, Passage] = {}
        if self.corpus is not None and found is not None:
            passages = Corpus(self.corpus).find({hit.id for hits in found for hit in hits})
        for number, (example, rewrite) in enumerate(zip(examples, rewrites, strict=True)):
            row: dict[str, Any] = {"id": example.id, "rewrite": rewrite.text, "finished": rewrite.finished}
            if found is not None:
                row["passages"] = [hit_row(hit, passages.get(hit.id)) for hit in found[number]]
            yield row
