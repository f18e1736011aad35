"""InscitWorld's truth about what a reader says, as rewards at three densities, and as measurements beside a reward.

A reader is taught to say `evidence: ID | ID answer: …`. The id of a prompt is the name of its turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from finegrained_lab.worlds.inscit.grammar import read_statements
from finegrained_lab.worlds.inscit.oracle import JUDGED_MEASURES, InscitOracle, OracleJudgement
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.inscit.conversation import ReaderReply, read_joint
from finegrained_rlhf.rewards.protocol import BaseScorer

if TYPE_CHECKING:
    import torch


_ANSWER = re.compile(r"\banswer\s*:")
_EVIDENCE = re.compile(r"evidence\s*:")
_SENTENCE = re.compile(r"[^\s.?!][^.?!]*[.?!]*")
_NAME = re.compile(r"[^\s|][^|]*[^\s|]|[^\s|]")


class OracleScorer(BaseScorer):
    """What the scorers of an InscitWorld have in common.

    Args:
        world: directory of the world.
    """

    def __init__(self, world: str) -> None:
        self.world = world

    @cached_property
    def oracle(self) -> InscitOracle:
        """The world's oracle, read when it is first asked. Raises DataError where the world is missing or damaged."""
        return InscitOracle.load(self.world)

    def setup(self, device: torch.device) -> None:
        """Read the truth."""
        _ = self.oracle

    def judge(self, prompt: Prompt, response: str) -> OracleJudgement:
        """What is true of what a reader says.

        Raises:
            DataError: the prompt is no turn of the world.
        """
        conversation, _, number = prompt.id.rpartition("_")
        if not number.isdecimal():
            raise DataError("expected the name of a turn, CONVERSATION_NUMBER", record=prompt.id, field="id")
        reply = reply_to(prompt, response)
        return self.oracle.judge(conversation, int(number), reply.response, reply.evidence)


def reply_to(prompt: Prompt, response: str) -> ReaderReply:
    """What a reader said, with the evidence among the passages of its prompt."""
    return read_joint(response, [passage.id for passage in prompt.metadata.get("passages", ())])


class GroundedSentences(OracleScorer):
    """A reward a sentence: 1 where the named evidence states all that it says or offers, −1 where it does not.

    A sentence that states nothing is −1 as well, but for the one that says that nothing was found, which is 0.
    """

    value_range = (-1.0, 1.0)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """See `Scorer.score`; the spans are the sentences behind `answer:`."""
        spans, values = [], []
        for prompt, text in zip(prompts, responses, strict=True):
            evidence = reply_to(prompt, text).evidence
            sentences = sentence_spans(text)
            spans.append(tuple(sentences))
            values.append(tuple(self._value(text[start:end], evidence) for start, end in sentences))
        return SegmentScores(spans, values)

    def _value(self, sentence: str, evidence: Sequence[str]) -> float:
        statements = read_statements(sentence)
        if not statements:
            return 0.0 if sentence.strip().lower().startswith("sorry") else -1.0
        return 1.0 if all(self.oracle.supports(one, evidence) for one in statements) else -1.0


class UsedEvidence(OracleScorer):
    """A reward a named passage: 1 where it states something that the response says, −1 where it does not.

    A passage that the reader was not given, or that it names again, is −1.
    """

    value_range = (-1.0, 1.0)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """See `Scorer.score`; the spans are the ids between `evidence:` and `answer:`."""
        spans, values = [], []
        for prompt, text in zip(prompts, responses, strict=True):
            statements = read_statements(reply_to(prompt, text).response)
            passages, named = [passage.id for passage in prompt.metadata.get("passages", ())], set[str]()
            named_spans, scored = evidence_spans(text), []
            for start, end in named_spans:
                name = "".join(read_joint(f"evidence: {text[start:end]}", passages).evidence)
                used = bool(name) and name not in named
                used = used and any(self.oracle.supports(one, [name]) for one in statements)
                named.add(name)
                scored.append(1.0 if used else -1.0)
            spans.append(tuple(named_spans))
            values.append(tuple(scored))
        return SegmentScores(spans, values)


class AskedFacts(OracleScorer):
    """A reward a response: the share of the facts that satisfy the question which it tells, or offers as an option.

    Where nothing satisfies it, 1 for a response that states nothing, else the share of its statements that are true.
    """

    value_range = (0.0, 1.0)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """See `Scorer.score`."""
        spans, values = [], []
        for prompt, text in zip(prompts, responses, strict=True):
            judgement = self.judge(prompt, text)
            spans.append(((0, len(text)),))
            values.append(
                (judgement.comprehensiveness if judgement.comprehensiveness is not None else _honest(judgement),)
            )
        return SegmentScores(spans, values, whole_response=True)


def _honest(judgement: OracleJudgement) -> float:
    return judgement.true / len(judgement.statements) if judgement.statements else 1.0


@dataclass(frozen=True)
class InscitWorldMonitor(Settings):
    """What is true of what a reader says, beside its reward; satisfies `inference.config.ResponseMonitor`.

    Attributes:
        world: directory of the world.
    """

    world: InputFile

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scorer", OracleScorer(self.world))

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(sum, count) over R responses of `truth/NAME`, for each name of `oracle.JUDGED_MEASURES`."""
        scorer: OracleScorer = self._scorer  # type: ignore[attr-defined]
        judgements = [scorer.judge(prompt, text) for prompt, text in zip(prompts, responses, strict=True)]
        counts = {}
        for name, measure in JUDGED_MEASURES.items():
            values = [value for value in map(measure, judgements) if value is not None]
            counts[f"truth/{name}"] = (float(sum(values)), float(len(values)))
        return counts


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Character spans (start, end) of the sentences behind `answer:`; none without it."""
    begun = _ANSWER.search(text)
    return [] if begun is None else [match.span() for match in _SENTENCE.finditer(text, begun.end())]


def evidence_spans(text: str) -> list[tuple[int, int]]:
    """Character spans (start, end) of what is named between `evidence:` and `answer:`, or the end."""
    begun = _EVIDENCE.match(text.lstrip())
    if begun is None:
        return []
    start = len(text) - len(text.lstrip()) + begun.end()
    answer = _ANSWER.search(text, start)
    return [match.span() for match in _NAME.finditer(text, start, answer.start() if answer else len(text))]
