"""Rewriting files of questions, or one dialogue from the command line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.queries import read_rewrites
from finegrained_rlhf.conqrr.readers.reading import RewriteData
from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.conqrr.rewriting.best_of import best_by_rank
from finegrained_rlhf.conqrr.rewriting.config import WrittenRewrite, words_of
from finegrained_rlhf.conqrr.rewriting.job import Rewrite
from finegrained_rlhf.conqrr.rewriting.rewriter import QueryRewriter, matching_alpha
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.jobs import hit_row
from finegrained_rlhf.retrieval.protocol import Hit, Retriever
from finegrained_rlhf.rollout.beam import best
from finegrained_rlhf.runtime.console import STANDARD_OUTPUT, progress_bar, writable
from finegrained_rlhf.runtime.processes import Processes

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
    with progress_bar("rewriting", len(examples), "question", shown) as bar:
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
