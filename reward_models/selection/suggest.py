"""Spans that trained segment models suggest before people look.

Which items get suggestions, and that none are shown where they would bias what is measured, is the annotation room's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import ModelName, above, below
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.taxonomy import Taxonomy

if TYPE_CHECKING:
    from reward_models.selection.answers import AnsweredQuestion


@dataclass(frozen=True)
class SuggestByModels(Settings):
    """Suggests each segment that a trained model claims to have an error.

    A model says which category an error is of, not its type: the first type of the category is suggested, or that of
    `types`. Where two models claim the same words, the category that comes first in the taxonomy keeps them.

    Attributes:
        models: directories or runs of trained segment models, or Hub names; their kinds are categories.
        types: the type that is suggested, by category.
        threshold: the least probability of an error that is suggested, in (0, 1).
        batch_size: answers in one forward pass.
        device: `cpu`, `cuda`, …; None takes a GPU where there is one.
    """

    models: Sequence[ModelName]
    types: Mapping[str, str] = field(default_factory=dict)
    threshold: Annotated[float, above(0), below(1)] = 0.5
    batch_size: int = 32
    device: str | None = None

    def __post_init__(self) -> None:
        if not self.models:
            raise ConfigError("models: expected one reward model or more")

    def suggest(self, items: Sequence[AnsweredQuestion], taxonomy: Taxonomy) -> list[tuple[Suggestion, ...]]:
        """Spans of each item's marked answer, from left to right.

        Raises:
            ConfigError: a model's kind, or a type, is none of the taxonomy, two models are of one kind, or a model
                scores whole answers.
        """
        from reward_models.selection.answers import AnswerReader

        made = [AnswerReader(path, self.batch_size, self.device) for path in self.models]
        readers = {reader.kind: reader for reader in made}
        if len(readers) < len(made):
            raise ConfigError("models: expected one model of each kind")
        chosen = {kind: self._type(kind, taxonomy) for kind in readers}
        suggestions: list[list[Suggestion]] = [[] for _ in items]
        for kind in sorted(readers, key=list(taxonomy.categories).index):
            for spans, judged in zip(suggestions, readers[kind].segments(items), strict=True):
                for (start, end), probability in zip(judged.spans, judged.verdicts.probabilities, strict=True):
                    free = all(end <= one.start or one.end <= start for one in spans)
                    if probability >= self.threshold and free:
                        spans.append(Suggestion(start, end, chosen[kind], probability, readers[kind].version))
        return [tuple(sorted(spans, key=lambda one: one.start)) for spans in suggestions]

    def _type(self, kind: str, taxonomy: Taxonomy) -> str:
        if kind not in taxonomy.categories:
            known = ", ".join(taxonomy.categories)
            raise ConfigError(f"models: taxonomy {taxonomy.name} has the categories {known}, not {kind!r}")
        types = taxonomy.categories[kind].types
        name = self.types.get(kind) or next(iter(types))
        if name not in types:
            raise ConfigError(f"types: category {kind} has the types {', '.join(types)}, not {name!r}")
        return name
