"""Items of annotation: a question with answers, and what is asked about them; which are chosen, and what is suggested.

A strategy's scores are mixed with chance, so that every item's probability is known. Suggested spans are named before
people look, by anything that can; here, by a judge. Strategies and suggestions that ask models are
`reward_models.selection`'s.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from finegrained_rlhf.core.checks import as_index, as_list, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.outputs import passages_of_lists, passages_to_lists
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.rewards.judge import Judge
from finegrained_rlhf.rewards.judged import spans_of
from finegrained_rlhf.runtime.remote.client import RemoteConfig
from finegrained_rlhf.text.templates import task_text

Role = Literal["single", "overlap", "qualification"]
"""Whether one annotator sees an item, all do, or all do first and it has an answer that is known to be right."""


@dataclass(frozen=True)
class AnnotationItem:
    """One question with its answers.

    Attributes:
        id: unique in a project.
        question: the question.
        passages: with their sentences; may be empty.
        answers: N ≥ 1, none empty, in the item's own order.
        reference: a human answer, where there is one.
        marked: index of the answer whose errors are marked; None where answers are only compared.
        role: who sees it.
        strategy: what chose the item; "random" or the name of a strategy.
        probability: with which it was chosen, in (0, 1].
        suggestions: spans that a model suggests in the marked answer.
    """

    id: str
    question: str
    passages: tuple[Passage, ...]
    answers: tuple[str, ...]
    reference: str | None = None
    marked: int | None = 0
    role: Role = "single"
    strategy: str = "random"
    probability: float = 1.0
    suggestions: tuple[Suggestion, ...] = ()

    def __post_init__(self) -> None:
        require_text(self.id, "id")
        require_text(self.question, "question")
        require(len(self.answers) > 0, "expected at least one answer, got none", "answers")
        for i, answer in enumerate(self.answers):
            require_text(answer, f"answers[{i}]")
        marked = self.marked is None or 0 <= self.marked < len(self.answers)
        require(marked, f"there is no answer {self.marked}", "marked")
        require(self.role in get_args(Role), f"expected one of {', '.join(get_args(Role))}, got {self.role!r}", "role")
        require(0 < self.probability <= 1, f"expected more than 0 and at most 1, got {self.probability}", "probability")

    @property
    def digest(self) -> str:
        """A hash of what people are shown, white space included: it tells whether a tool changed it."""
        shown = [self.question, passages_to_lists(self.passages), list(self.answers), self.reference]
        text = json.dumps(shown, ensure_ascii=True)
        return hashlib.blake2b(text.encode("ascii"), digest_size=8).hexdigest()


def item_row(item: AnnotationItem) -> dict[str, Any]:
    """The JSON object of an item."""
    return {
        "id": item.id,
        "question": item.question,
        "passages": passages_to_lists(item.passages),
        "answers": list(item.answers),
        "reference": item.reference,
        "marked": item.marked,
        "role": item.role,
        "strategy": item.strategy,
        "probability": item.probability,
        "suggestions": [suggestion_row(one) for one in item.suggestions],
    }


def suggestion_row(one: Suggestion) -> dict[str, Any]:
    """The JSON object of a suggestion, as tools are given it."""
    names = {"start": one.start, "end": one.end, "type": one.error_type}
    return {**names, "score": one.score, "model_version": one.model_version}


def parse_item(row: Mapping[str, Any]) -> AnnotationItem:
    """The inverse of `item_row`. Raises DataError with the field."""
    return AnnotationItem(
        id=require_text(get_field(row, "id"), "id"),
        question=require_text(get_field(row, "question"), "question"),
        passages=passages_of_lists(get_field(row, "passages")),
        answers=tuple(text_list(get_field(row, "answers"), "answers")),
        reference=row.get("reference"),
        marked=None if row.get("marked") is None else as_index(row["marked"], "marked"),
        role=row.get("role", "single"),
        strategy=require_text(row.get("strategy", "random"), "strategy"),
        probability=row.get("probability", 1.0),
        suggestions=tuple(_suggestions(as_list(row.get("suggestions", []), "suggestions"))),
    )


def _suggestions(rows: Sequence[Any]) -> list[Suggestion]:
    return [Suggestion(row["start"], row["end"], row["type"], row["score"], row["model_version"]) for row in rows]


LEAST_RANDOM = 0.3
"""Share of the chosen items that are chosen by chance at least: what is reported must rest on some of them."""


@runtime_checkable
class ItemSelection(Protocol):
    """Says which items are worth annotating first."""

    @property
    def name(self) -> str:
        """What items that it chose are said to be chosen by."""
        ...

    def order(self, items: Sequence[AnnotationItem]) -> Sequence[int]:
        """The places of all items, the most wanted first."""
        ...


@dataclass(frozen=True)
class RandomSelection(Settings):
    """Chance alone.

    Attributes:
        name: in the items.
    """

    name: str = "random"

    def order(self, items: Sequence[AnnotationItem]) -> Sequence[int]:
        """In their own order; all that is chosen is chosen by chance anyway."""
        return range(len(items))


def choose_items(
    items: Sequence[AnnotationItem], count: int | None, selection: ItemSelection, random_share: float, seed: int
) -> list[AnnotationItem]:
    """Choose items without replacement: a share by chance from all, the others by the strategy from those left.

    An item's `probability` is that of its being chosen by chance; of those that the strategy chose (`strategy`), 1,
    since another seed would mostly choose them again: what is reported rests on the random ones.

    Args:
        items: to choose from.
        count: how many; None or more than there are takes all.
        selection: the strategy.
        random_share: of the chosen ones, by chance; at least `LEAST_RANDOM`.
        seed: of chance.

    Raises:
        ConfigError: a share below the least or above 1, or a count below 1.
    """
    if not LEAST_RANDOM <= random_share <= 1:
        raise ConfigError(f"random_share: expected {LEAST_RANDOM} to 1, got {random_share}")
    if count is not None and count < 1:
        raise ConfigError(f"count: expected at least 1, got {count}")
    if count is None or count >= len(items):
        return [replace(item, strategy="random", probability=1.0) for item in items]
    by_chance = count if isinstance(selection, RandomSelection) else round(random_share * count)
    by_chance = max(1, by_chance)
    import numpy as np

    generator = np.random.default_rng(stable_hash(seed, "selection"))
    drawn = generator.permutation(len(items)).tolist()[:by_chance]
    wanted = [place for place in selection.order(items) if place not in set(drawn)][: count - by_chance]
    share = by_chance / len(items)
    chosen = {place: replace(items[place], strategy="random", probability=share) for place in drawn}
    chosen |= {place: replace(items[place], strategy=selection.name, probability=1.0) for place in wanted}
    return [chosen[place] for place in sorted(chosen)]


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
