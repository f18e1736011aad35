"""Rewriting questions as a configuration: what `finegrained rewrite` builds and runs.

Of several sampled rewrites of a question `by_rank` writes the one whose search ranks a gold passage best. It reads the
answer key: what it finds is an upper bound for any choice among the same samples, and no system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample
from finegrained_rlhf.conqrr.inputs import MAX_INPUT_TOKENS, MAX_REWRITE_TOKENS, RewriteTemplate
from finegrained_rlhf.conqrr.rewards import hit_rank
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import CorpusPath, IndexPath, InputFile, ModelName, OutputFile, Seed, at_least
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.retrieval.protocol import Hit, Retriever, RetrieverConfig
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT
from finegrained_rlhf.runtime.process_config import ProcessConfig


@dataclass(frozen=True)
class RewritingConfig(Settings):
    """How rewrites are decoded.

    Attributes:
        beams: 1 decodes greedily, as the thesis does.
        alpha: length normalisation of a beam search (Wu et al., 2016); 0 does not normalise, more makes longer
            rewrites. The thesis's T5QR with brevity penalty has the one that matches CONQRR in length (figure 4.5).
        max_input_tokens: longest input; older turns are cut off.
        max_new_tokens: longest rewrite, end of sequence included.
        batch_size: questions decoded at once.
        template: what stands around the dialogue, a text with `{dialogue}`; None: what the policy was trained with,
            the dialogue alone where its checkpoint does not say.
    """

    beams: Annotated[int, at_least(1)] = 1
    alpha: float = 0.0
    max_input_tokens: int = MAX_INPUT_TOKENS
    max_new_tokens: Annotated[int, at_least(1)] = MAX_REWRITE_TOKENS
    batch_size: Annotated[int, at_least(1)] = 64
    template: str | None = None

    def __post_init__(self) -> None:
        if self.template is not None:
            RewriteTemplate(self.template)
        if self.alpha and self.beams == 1:
            raise ConfigError("alpha: greedy decoding has no length normalisation; set beams above 1 too")


@dataclass(frozen=True)
class WrittenRewrite:
    """A rewrite as it was decoded.

    Attributes:
        text: without special tokens.
        finished: the policy ended it; False where the limit of tokens cut it off.
    """

    text: str
    finished: bool


def words_of(text: str) -> int:
    """The length of a rewrite in words between white space."""
    return len(text.split())


_SEARCHED_AT_ONCE = 64


@dataclass(frozen=True)
class BestOfRank(Settings):
    """How rewrites are drawn, and how deep their gold passages are looked for.

    Attributes:
        n: samples a question.
        temperature: divides the logits.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        seed: of the sampling; a question's samples depend on it and on the question alone.
        depth: passages that a search finds; a passage beyond it counts as not found.
    """

    n: int = 8
    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 1.0
    seed: Seed = 0
    depth: Annotated[int, at_least(1)] = 100

    def __post_init__(self) -> None:
        try:
            self.decoding()
        except ValueError as error:
            raise ConfigError(f"by_rank: {error}") from None

    def decoding(self) -> Sample:
        """What the rollout engine draws."""
        return Sample(self.n, self.temperature, self.top_k, self.top_p)


def best_by_rank(
    examples: Sequence[RewriteExample], texts: Sequence[Sequence[str]], retriever: Retriever, depth: int
) -> list[int]:
    """For each question the number of the text that ranks one of its gold passages best, the first of equal ones.

    Ties of scores count against a gold passage. A question without gold passages gets its first text.

    Args:
        examples: the questions.
        texts: of each question, at least one; blank ones find nothing.
        retriever: searches the corpus.
        depth: passages that a search finds.

    Raises:
        DataError: no question has a gold passage.
    """
    if not any(example.gold for example in examples):
        raise DataError("no question has a gold passage: there is no rank to choose by", field="gold")
    judged = [group if example.gold else () for example, group in zip(examples, texts, strict=True)]
    queries = list(dict.fromkeys(text for group in judged for text in group if text.strip()))
    hits: dict[str, list[Hit]] = {}
    for start in range(0, len(queries), _SEARCHED_AT_ONCE):
        batch = queries[start : start + _SEARCHED_AT_ONCE]
        hits.update(zip(batch, retriever.search(batch, depth), strict=True))
    best = []
    for example, group in zip(examples, judged, strict=True):
        ranks = [min(hit_rank(hits.get(text, ()), gold) for gold in example.gold) for text in group]
        best.append(ranks.index(min(ranks)) if ranks else 0)
    return best


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
        from finegrained_rlhf.conqrr.rewriter import rewrite

        rewrite(self)
