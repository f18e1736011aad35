"""Rewriting questions as a configuration: what `finegrained rewrite` builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.conqrr.rewriting.best_of import BestOfRank
from finegrained_rlhf.conqrr.rewriting.config import RewritingConfig
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import CorpusPath, IndexPath, InputFile, ModelName, OutputFile, at_least
from finegrained_rlhf.retrieval.protocol import RetrieverConfig
from finegrained_rlhf.retrieval.recorded import RecordedConfig
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT
from finegrained_rlhf.runtime.process_config import ProcessConfig


@dataclass(frozen=True)
class Rewrite(Settings):
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

    checkpoint: ModelName
    input: InputFile | RewriteData | None = None
    format: str = "jsonl"
    turns: Sequence[str] = ()
    output: OutputFile = STANDARD_OUTPUT
    rewriting: RewritingConfig = field(default_factory=RewritingConfig)
    match: InputFile | None = None
    by_rank: BestOfRank | None = None
    index: IndexPath | None = None
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)
    corpus: CorpusPath | None = None
    k: Annotated[int, at_least(1)] = 10
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        if self.input is not None and self.turns:
            raise ConfigError("input: expected either input or turns")
        if self.format != "jsonl" and not isinstance(self.input, str):
            raise ConfigError(f"format: belongs to a file input, got {self.format!r}")
        if isinstance(self.input, str):
            RewriteData(self.input, self.format)
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
        from finegrained_rlhf.conqrr.rewriting.rewrite import rewrite

        rewrite(self)
