"""A trained query rewriter: questions in dialogues in, questions that stand alone out; from files, or one dialogue from
the command line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, read_rewrites
from finegrained_rlhf.conqrr.inputs import rewrite_prompts, stored_template, template_for_rewriting
from finegrained_rlhf.conqrr.rewriting import Rewrite, RewritingConfig, WrittenRewrite, best_by_rank, words_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Sample
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inference.generator import PolicyGenerator
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.jobs import hit_row
from finegrained_rlhf.retrieval.protocol import Hit, Retriever
from finegrained_rlhf.rollout.beam import Hypothesis, beam_search, best
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, ProgressBar, writable
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import token_ends

_LOWEST, _HIGHEST, _HALVINGS = -4.0, 8.0, 40


class QueryRewriter:
    """Rewrites questions.

    Args:
        policy: in evaluation mode, on its device.
        processes: gives the precision.
        config: how rewrites are decoded.

    Raises:
        ModelError: the policy's checkpoint names a template that is none.
    """

    def __init__(self, policy: Policy, processes: Processes, config: RewritingConfig | None = None) -> None:
        self.policy, self.processes, self.config = policy, processes, config or RewritingConfig()
        self.template = template_for_rewriting(policy, self.config.template)

    @classmethod
    def load(cls, checkpoint: str, processes: Processes, config: RewritingConfig | None = None) -> QueryRewriter:
        """The policy of a run, a checkpoint or a model directory; one that was trained for something else is warned of.

        Raises:
            ModelError: there is no model, or it cannot be read.
        """
        policy = PolicyConfig(checkpoint).load(processes.device)
        if (config is None or config.template is None) and stored_template(policy) is None:
            logger.warning(
                "checkpoint: %s was not trained as a query rewriter (finegrained train-conqrr); rewriting.template "
                "says what stands around the dialogue in the input of another policy",
                checkpoint,
            )
        return cls(policy, processes, config)

    def rewrite(self, examples: Sequence[RewriteExample], done: Callable[[int], object] | None = None) -> list[str]:
        """The text of a rewrite of each question. Arguments as in `write`."""
        return [rewrite.text for rewrite in self.write(examples, done)]

    def write(
        self, examples: Sequence[RewriteExample], done: Callable[[int], object] | None = None
    ) -> list[WrittenRewrite]:
        """A rewrite of each question.

        Args:
            examples: the questions, with what was said before.
            done: called with the number of questions of each finished batch.
        """
        if self.config.beams > 1:
            return [self.written(best(hypotheses, self.config.alpha)) for hypotheses in self.search(examples, done)]
        return [group[0] for group in self._drawn(examples, Greedy(), 0, done)]

    def sample(
        self,
        examples: Sequence[RewriteExample],
        decoding: Sample,
        seed: int,
        done: Callable[[int], object] | None = None,
    ) -> list[list[WrittenRewrite]]:
        """Several rewrites of each question, drawn as `decoding` and `seed` say. Arguments else as in `write`."""
        return self._drawn(examples, decoding, seed, done)

    def _drawn(
        self,
        examples: Sequence[RewriteExample],
        decoding: Decoding,
        seed: int,
        done: Callable[[int], object] | None,
    ) -> list[list[WrittenRewrite]]:
        drawn: list[list[WrittenRewrite]] = []
        batches = PolicyGenerator(self.policy, processes=self.processes).stream(
            self._prompts(examples),
            decoding,
            max_new_tokens=self.config.max_new_tokens,
            batch_size=self.config.batch_size,
            seed=seed,
        )
        for batch in batches:
            drawn += [[WrittenRewrite(one.text, one.finished) for one in group] for group in batch]
            if done is not None:
                done(len(batch))
        return drawn

    def search(
        self, examples: Sequence[RewriteExample], done: Callable[[int], object] | None = None
    ) -> list[list[Hypothesis]]:
        """What beam search finds for each question; `best` chooses. Arguments as in `rewrite`."""
        prompts = self._prompts(examples)
        check_vocabulary(self.policy, [prompt.input_ids for prompt in prompts])
        beams: list[list[Hypothesis]] = []
        for start in range(0, len(prompts), self.config.batch_size):
            batch = prompts[start : start + self.config.batch_size]
            with self.processes.autocast():
                beams += beam_search(self.policy, batch, self.config.beams, self.config.max_new_tokens)
            if done is not None:
                done(len(batch))
        return beams

    def _prompts(self, examples: Sequence[RewriteExample]) -> list[Prompt]:
        return rewrite_prompts(examples, self.policy.tokenizer, self.config.max_input_tokens, self.template)

    def written(self, hypothesis: Hypothesis) -> WrittenRewrite:
        """A hypothesis as a rewrite."""
        return WrittenRewrite(self.text(hypothesis), hypothesis.finished)

    def text(self, hypothesis: Hypothesis) -> str:
        """A hypothesis as text, decoded as rollouts are."""
        return token_ends(self.policy.tokenizer, list(hypothesis.ids))[0]


def matching_alpha(rewriter: QueryRewriter, searched: Sequence[Sequence[Hypothesis]], words: float) -> float:
    """The α whose rewrites come closest to a mean length (thesis, figure 4.5).

    The mean length grows with α, in steps; it is halved in between until the two sides of a step are found.

    Args:
        rewriter: that searched.
        searched: the hypotheses of each question, at least one.
        words: wanted mean number of words of a rewrite.
    """
    tables = [
        (np.array([h.logprob for h in hypotheses]), (5.0 + np.array([len(h.ids) for h in hypotheses])) / 6.0)
        for hypotheses in searched
    ]
    words_each = [[words_of(rewriter.text(h)) for h in hypotheses] for hypotheses in searched]

    def mean(alpha: float) -> float:
        chosen = (int(np.argmax(logprobs / lengths**alpha)) for logprobs, lengths in tables)
        return sum(row[place] for row, place in zip(words_each, chosen, strict=True)) / len(searched)

    low, high = _LOWEST, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < words else (low, middle)
    return min((low, high), key=lambda alpha: abs(mean(alpha) - words))


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


def rewrite(job: Rewrite) -> None:
    """Rewrite, search and write as a job says."""
    processes = Processes(job.processes)
    if processes.count > 1:
        raise ConfigError("finegrained rewrite runs in one process")
    examples = _examples(job)
    retriever = None if job.index is None else job.retriever.open(Path(job.index))
    rewriter = QueryRewriter.load(job.checkpoint, processes, job.rewriting)
    written = _rewrites(job, rewriter, examples, retriever)
    rewrites = [one.text for one in written]
    results: list[list[Hit]] | None = None
    if retriever is not None:
        results = []
        for start in range(0, len(rewrites), _SEARCHED_AT_ONCE):
            results += retriever.search(rewrites[start : start + _SEARCHED_AT_ONCE], job.k)
    rows = list(_rows(job, examples, written, results))
    with writable(job.output) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    if job.output != STANDARD_OUTPUT:
        mean = sum(map(words_of, rewrites)) / len(rewrites)
        print(f"{len(rewrites)} questions rewritten, {mean:.1f} words each -> {job.output}")


def _examples(job: Rewrite) -> Sequence[RewriteExample]:
    if job.input is not None:
        data = RewriteData(job.input, job.format) if isinstance(job.input, str) else job.input
        return data.read().examples
    if not job.turns:
        raise ConfigError("give input=FILE, or turns=['question','answer','question']")
    return [last_question(job.turns)]


def _rewrites(
    job: Rewrite, rewriter: QueryRewriter, examples: Sequence[RewriteExample], retriever: Retriever | None
) -> list[WrittenRewrite]:
    shown = len(examples) > job.rewriting.batch_size
    with ProgressBar("rewriting", len(examples), "questions", shown) as bar:
        if job.by_rank is not None and retriever is not None:
            drawn = rewriter.sample(examples, job.by_rank.decoding(), job.by_rank.seed, bar.update)
            texts = [[one.text for one in group] for group in drawn]
            best_ones = best_by_rank(examples, texts, retriever, job.by_rank.depth)
            return [group[number] for group, number in zip(drawn, best_ones, strict=True)]
        if job.match is None:
            return rewriter.write(examples, bar.update)
        others = read_rewrites(job.match)
        searched = rewriter.search(examples, bar.update)
    wanted = sum(map(words_of, others.values())) / len(others)
    alpha = matching_alpha(rewriter, searched, wanted)
    rewrites = [rewriter.written(best(hypotheses, alpha)) for hypotheses in searched]
    mean = sum(words_of(one.text) for one in rewrites) / len(rewrites)
    level = logging.WARNING if abs(mean - wanted) > _CLOSE else logging.INFO  # beams may not be long enough
    logger.log(level, "alpha = %.4f gives %.2f words a rewrite; %s has %.2f", alpha, mean, job.match, wanted)
    return rewrites


def _rows(
    job: Rewrite,
    examples: Sequence[RewriteExample],
    rewrites: Sequence[WrittenRewrite],
    results: Sequence[Sequence[Hit]] | None,
) -> Iterator[dict[str, Any]]:
    passages: dict[str, Passage] = {}
    if job.corpus is not None and results is not None:
        passages = Corpus(job.corpus).find({hit.id for hits in results for hit in hits})
    for number, (example, rewrite) in enumerate(zip(examples, rewrites, strict=True)):
        row: dict[str, Any] = {"id": example.id, "rewrite": rewrite.text, "finished": rewrite.finished}
        if results is not None:
            row["passages"] = [hit_row(hit, passages.get(hit.id)) for hit in results[number]]
        yield row
