"""An assistant that answers a conversation from a corpus: retrieve, identify, answer.

Joins a retriever, a passage identifier, a reader and a classifier of response types, all of them trained elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from finegrained_rlhf.core.checks import require, require_text
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.prompt_files import conversation_prompt
from finegrained_rlhf.inference.generator import PolicyGenerator
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.inscit.conversation import (
    NO_INFORMATION,
    RESPONSE_TYPES,
    EvidencePassage,
    EvidenceQuery,
    ReaderReply,
    ResponseType,
    corpus_evidence,
    evidence_query,
    evidence_text_of,
    read_joint,
    unique,
    with_type,
)
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.text.segmentation import SpacySegmenter


class FindsPassages(Protocol):
    """A corpus or a store of passages (`retrieval.Corpus`, `retrieval.PassageStore`)."""

    def find(self, ids: list[str]) -> dict[str, Passage]:
        """The passages with these ids."""


class SearchesPassages(Protocol):
    """What finds passages: any `Retriever`, or several that are fused."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best passages for each query, best first."""


class SelectsEvidence(Protocol):
    """A passage identifier (`EvidenceIdentifier` is one)."""

    def select(
        self,
        context: Sequence[str],
        earlier: Sequence[Sequence[EvidencePassage]],
        candidates: Sequence[EvidencePassage],
    ) -> tuple[str, ...]:
        """The ids of the passages that the next answer rests on."""


@dataclass(frozen=True)
class CitedPassage:
    """A passage that an answer rests on.

    Attributes:
        passage: it.
        spans: character spans (start, end) of the sentences of its text that the answer shares most words with, one for
            each sentence of the answer that shares any.
    """

    passage: EvidencePassage
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class AssistantAnswer:
    """What the assistant says.

    Attributes:
        response: its words.
        evidence: what it rests on.
        response_type: what kind of answer it is; None without a classifier.
    """

    response: str
    evidence: tuple[CitedPassage, ...] = ()
    response_type: ResponseType | None = None


@dataclass(frozen=True)
class AssistantSettings:
    """How an assistant searches and answers.

    Attributes:
        query: what is searched for (`evidence_query`).
        passages: at most so many candidates, those of earlier turns included.
        typed: whether the reader was trained with types (`finegrained make-reader-inputs types=…`); it is told then
            what the classifier says. It needs an identifier: the type depends on the evidence.
        max_prompt_tokens: longest piece of a prompt.
        max_new_tokens: longest response.
        segmenter: spaCy pipeline that cuts sentences for spans; `rules` needs no model.
    """

    query: EvidenceQuery = "context"
    passages: int = 50
    typed: bool = False
    max_prompt_tokens: int = 384
    max_new_tokens: int = 192
    segmenter: str = "rules"

    def __post_init__(self) -> None:
        for name in ("passages", "max_prompt_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")


@dataclass
class Assistant:
    """Answers conversations from a corpus.

    With an identifier the reader answers from what that selects (`task=response`); without one it names its evidence
    itself (`task=joint`).

    Attributes:
        corpus: looks passages up by id: a `PassageStore`, or a `Corpus` of moderate size.
        retriever: searches that corpus.
        identifier: selects evidence among the candidates; None leaves that to the reader.
        reader: answers.
        types: tells response types; None tells none.
        settings: how.
    """

    corpus: FindsPassages
    retriever: SearchesPassages
    identifier: SelectsEvidence | None
    reader: PolicyGenerator
    types: TextClassifier | None = None
    settings: AssistantSettings = AssistantSettings()
    _segmenter: SpacySegmenter = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._segmenter = SpacySegmenter(self.settings.segmenter)
        if self.settings.typed and (self.types is None or self.identifier is None):
            raise ConfigError("settings.typed needs types and an identifier")

    def answer(
        self, dialogue: Sequence[str], earlier: Sequence[Sequence[EvidencePassage]] | None = None
    ) -> AssistantAnswer:
        """Answer the last utterance of a conversation.

        Args:
            dialogue: what was said, the user first and last.
            earlier: the evidence of each earlier answer, oldest first; None: of none it is known.

        Raises:
            DataError: an even number of utterances, a blank one, or `earlier` of another length.
        """
        require(len(dialogue) % 2 == 1, f"expected an odd number of utterances, got {len(dialogue)}", "dialogue")
        for i, text in enumerate(dialogue):
            require_text(text, f"dialogue[{i}]")
        before = [() for _ in range(len(dialogue) // 2)] if earlier is None else list(earlier)
        expected = f"expected the evidence of {len(dialogue) // 2} earlier answers, got {len(before)}"
        require(len(before) == len(dialogue) // 2, expected, "earlier")
        candidates = self._candidates(dialogue, before)
        known = {passage.id: passage for passage in candidates}
        if self.identifier is None:
            reply = read_evidence(self.reader, dialogue, candidates, self.settings, joint=True)
            evidence = [known[name] for name in reply.evidence]
            kind = self._type(dialogue, evidence)
        else:
            evidence = [known[name] for name in self.identifier.select(dialogue, before, candidates)]
            kind = self._type(dialogue, evidence)
            turns = with_type(dialogue, kind) if self.settings.typed and kind is not None else dialogue
            reply = read_evidence(self.reader, turns, evidence, self.settings)
        cited = tuple(CitedPassage(passage, self._spans(passage.text, reply.response)) for passage in evidence)
        return AssistantAnswer(reply.response, cited, kind)

    async def answer_async(
        self, dialogue: Sequence[str], earlier: Sequence[Sequence[EvidencePassage]] | None = None
    ) -> AssistantAnswer:
        """As `answer`, in a thread, so that the loop goes on."""
        return await asyncio.to_thread(self.answer, dialogue, earlier)

    def _candidates(
        self, dialogue: Sequence[str], earlier: Sequence[Sequence[EvidencePassage]]
    ) -> list[EvidencePassage]:
        """Earlier evidence, the oldest turn's first for an identifier, the newest's for a reader; then others."""
        order = earlier if self.identifier is not None else list(reversed(earlier))
        known = {passage.id: passage for part in order for passage in part}
        query = evidence_query(dialogue, self.settings.query)
        (hits,) = self.retriever.search([query], self.settings.passages)
        ids = unique([*known, *(hit.id for hit in hits)])[: self.settings.passages]
        passages = self.corpus.find([name for name in ids if name not in known])
        known |= {name: corpus_evidence(one) for name, one in passages.items()}
        return [known[name] for name in ids]

    def _type(self, dialogue: Sequence[str], evidence: Sequence[EvidencePassage]) -> ResponseType | None:
        if self.types is None:
            return None
        names = self.types.model.config.id2label
        scores = self.types.label_probabilities([evidence_text_of(dialogue, evidence)])
        label = str(names[int(scores[0].argmax())])
        return next((kind for kind in RESPONSE_TYPES if kind == label), None)

    def _spans(self, text: str, response: str) -> tuple[tuple[int, int], ...]:
        sentences = [(span[0], span[1]) for span in self._segmenter.sentences(text)]
        words = [Counter(text[start:end].lower().split()) for start, end in sentences]
        supported = set()
        for start, end in self._segmenter.sentences(response):
            response_words = Counter(response[start:end].lower().split())
            shared = [(response_words & one).total() for one in words]
            most = max(shared, default=0)
            if most:
                supported.add(sentences[shared.index(most)])
        return tuple(sorted(supported))


def read_evidence(
    reader: PolicyGenerator,
    turns: Sequence[str],
    passages: Sequence[EvidencePassage],
    settings: AssistantSettings,
    joint: bool = False,
) -> ReaderReply:
    """What a reader replies to a conversation from passages.

    Args:
        reader: answers.
        turns: what was said, the user first and last.
        passages: that it reads.
        settings: the limits of its prompt and response.
        joint: whether it names its evidence itself; else it rests on all passages.
    """
    cleaned = [Passage.uncut(p.id, " ".join(p.text.split()), "|".join(p.titles)) for p in passages]
    item, limit = conversation_prompt("turn", turns, cleaned), settings.max_prompt_tokens
    prompts = prompts_for(reader.policy, [item], limit, "truncate", PromptConfig())
    (((response,),),) = reader.stream(prompts, max_new_tokens=settings.max_new_tokens)
    if joint:
        return read_joint(response.text, [passage.id for passage in passages])
    return ReaderReply(response.text.strip() or NO_INFORMATION, tuple(passage.id for passage in passages))
