"""Spans that are suggested before people look, by anything that can name them; here, by a judge.

Which items get suggestions is `make`'s; models that suggest are `reward_models.selection`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from finegrained_rlhf.annotation.project.items import AnnotationItem
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.rewards.judge import Judge
from finegrained_rlhf.rewards.judged import spans_of
from finegrained_rlhf.runtime.remote.client import RemoteConfig
from finegrained_rlhf.text.templates import task_text


@runtime_checkable
class SpanSuggester(Protocol):
    """Suggests spans before people look."""

    def suggest(self, items: Sequence[AnnotationItem], taxonomy: Taxonomy) -> Sequence[Sequence[Suggestion]]:
        """Spans of each item's marked answer, which do not overlap."""
        ...


@dataclass(frozen=True, kw_only=True)
class SuggestByJudge(Settings):
    """A language model behind an OpenAI-compatible endpoint quotes what is wrong, by the types of the taxonomy.

    A quote that is not in the answer is left out; where two fall on the same words, the first one stays.

    Attributes:
        remote: the endpoint, up to and with `/chat/completions`.
        model: as the endpoint names it.
        cache_file: SQLite file in which quotes are kept, so that a second run asks nothing twice.
        max_tokens: of an answer.
        version: any word; kept quotes of another version are not taken.
    """

    remote: RemoteConfig
    model: str
    cache_file: OutputFile
    max_tokens: int = 1024
    version: str = "1"

    def suggest(self, items: Sequence[AnnotationItem], taxonomy: Taxonomy) -> list[tuple[Suggestion, ...]]:
        """Spans of each item's marked answer, from left to right; prints how many quotes and items were left out.

        Raises:
            ConfigError: the taxonomy has no types, or the key is not there.
            FineGrainedError: the endpoint gives no answer at all.
        """
        kinds = {kind.name: kind.description for one in taxonomy.categories.values() for kind in one.types.values()}
        if not kinds:
            raise ConfigError(f"preannotate: taxonomy {taxonomy.name} has no types that a judge could quote")
        judge = Judge(self.remote, self.model, self.cache_file, kinds, max_tokens=self.max_tokens, version=self.version)
        texts = [_marked(item) for item in items]
        judged = judge.judgements([_prompt(item) for item in items], texts)
        suggestions, refused = [], 0
        for text, quotes in zip(texts, (judgement.quotes for judgement in judged), strict=True):
            kept: list[Suggestion] = []
            spans = spans_of([quote for quote, _ in quotes], text)
            for span, (_, kind) in zip(spans, quotes, strict=True):
                if span is None or any(span[0] < one.end and one.start < span[1] for one in kept):
                    refused += 1
                else:
                    kept.append(Suggestion(*span, kind, None, f"judge {self.model}"))
            suggestions.append(tuple(sorted(kept, key=lambda one: one.start)))
        print(
            f"the judge suggests {sum(map(len, suggestions))} spans; {refused} quotes are not in the answer, or overlap"
        )
        if without := Counter(judgement.outcome.value for judgement in judged if judgement.problem):
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(without.items()))
            print(f"{without.total()} of {len(judged)} answers have no judgement, and no suggestions: {outcomes}")
        return suggestions


def _marked(item: AnnotationItem) -> str:
    assert item.marked is not None  # others get no suggestions
    return item.answers[item.marked]


def _prompt(item: AnnotationItem) -> Prompt:
    text = task_text(item.question, item.passages)
    return Prompt(item.id, text, (), {"question": item.question, "passages": item.passages})
