"""A shopper by rule: what each persona accepts of a product, feature by feature, and what is said of a wrong purchase.

Source: Liang et al. 2026, section 4.1: a language model answers before the purchase, a rule speaks after it and names
one feature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from finegrained_lab.protocols.pahf.scenes import NO_PURCHASE, Scene, ShoppingScene
from finegrained_lab.protocols.pahf.users import PLAY
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.personalization.prompts import ask_for_text

_NOT_A_PRODUCT = "name"


@dataclass(frozen=True)
class FeatureTaste:
    """What a persona thinks of the values of one feature.

    Attributes:
        most: liked most.
        accepted: liked less, and accepted.
        refused: a product with one of them is not bought.
    """

    most: str
    accepted: tuple[str, ...]
    refused: tuple[str, ...]

    def rank(self, value: str) -> int | None:
        """0 for the value liked most, 1 for an accepted one, 2 for a refused one; None for what is no value of it."""
        if value == self.most:
            return 0
        return 1 if value in self.accepted else 2 if value in self.refused else None


Tastes = Mapping[str, FeatureTaste]
"""A persona's tastes in one product, by feature."""


def read_tastes(path: str) -> dict[str, dict[str, dict[str, FeatureTaste]]]:
    """What each persona accepts, by persona, product and feature: the paper's `data/shopping/persona_info.json`.

    Raises:
        DataError: the file is missing, or a record is not as it should be.
    """
    tastes: dict[str, dict[str, dict[str, FeatureTaste]]] = {}
    try:
        for user, record in as_object(read_json(path), "personas").items():
            own = as_object(get_field(as_object(record, user), "persona_info", f"{user}."), user)
            tastes[user] = {
                product: {
                    feature: _taste(value, f"{user}.{product}.{feature}")
                    for feature, value in as_object(features, f"{user}.{product}").items()
                }
                for product, features in own.items()
                if product != _NOT_A_PRODUCT
            }
    except DataError as error:
        raise error.at(file=path) from None
    if not tastes:
        raise DataError("expected at least one persona", file=path)
    return tastes


def _taste(value: Any, field: str) -> FeatureTaste:
    row = as_object(value, field)
    most = require_text(get_field(row, "like_most", f"{field}."), f"{field}.like_most")
    lists = [text_list(get_field(row, name, f"{field}."), f"{field}.{name}") for name in ("like_second", "dislike")]
    require(len({most, *lists[0], *lists[1]}) == 1 + sum(map(len, lists)), "expected values that are said once", field)
    return FeatureTaste(most, tuple(lists[0]), tuple(lists[1]))


@dataclass(frozen=True)
class ShoppingUser(Settings):
    """A persona who buys what all of whose features they accept, and likes some of it more.

    Attributes:
        personas: file of what they accept in phases 1 and 2.
        changed_personas: of phases 3 and 4; None as `personas`.
        llm: answers questions, of the user's own; None says what holds of the features that the question names, of
            all of them where it names none.
    """

    personas: InputFile
    changed_personas: str | None = None
    llm: TextGenerator | None = None

    def answer(self, scene: Scene, question: str, phase: int) -> str:
        """What the persona accepts.

        Raises:
            FineGrainedError: no scene of shopping, no such persona or product; or the model gives no answer.
        """
        tastes = self._tastes(scene, phase)
        if self.llm is not None:
            persona = json.dumps({feature: asdict(taste) for feature, taste in tastes.items()}, ensure_ascii=False)
            data = {"persona": persona, "instruction": scene.instruction, "question": question}
            return ask_for_text(self.llm, "persona_answer", PLAY, data)
        named = [feature for feature in tastes if feature.lower() in question.lower()]
        return " ".join(_sentence(feature, tastes[feature]) for feature in named or tastes)

    def correct(self, scene: Scene, option: str, phase: int) -> str:
        """One feature of what was bought that is refused; else one that the right product has and is liked more.

        Raises:
            DataError: no scene of shopping, no such persona or product, or a feature that the persona does not know.
        """
        tastes = self._tastes(scene, phase)
        assert isinstance(scene, ShoppingScene)
        if option == NO_PURCHASE:
            return f"I would have bought the {scene.intent}."
        chosen = _ranks(scene, option, tastes)
        for feature, (value, rank) in chosen.items():
            if rank == 2:
                return f"I do not want {value} ({feature})."
        if scene.intent != NO_PURCHASE:
            for feature, (value, rank) in _ranks(scene, scene.intent, tastes).items():
                if feature in chosen and rank < chosen[feature][1]:
                    return f"That would do, but I like {value} more ({feature})."
        return "That was not the one that I like most."

    def _tastes(self, scene: Scene, phase: int) -> Tastes:
        if not isinstance(scene, ShoppingScene):
            raise DataError("expected a scene of shopping", record=scene.id)
        path = self.changed_personas if phase > 2 and self.changed_personas is not None else self.personas
        tastes = _read_once(path).get(scene.user, {}).get(scene.product)
        if tastes is None:
            raise DataError(f"there is no persona of {scene.user} who buys a {scene.product}", file=path)
        return tastes


def _ranks(scene: ShoppingScene, option: str, tastes: Tastes) -> dict[str, tuple[str, int]]:
    """Value and rank by feature, of one of the products."""
    by_feature: dict[str, tuple[str, int]] = {}
    for value in scene.features[scene.options.index(option)]:
        ranks = {feature: taste.rank(value) for feature, taste in tastes.items()}
        known = [(feature, rank) for feature, rank in ranks.items() if rank is not None]
        if len(known) != 1:
            raise DataError(f"expected one feature of a {scene.product} with the value {value}", record=scene.id)
        by_feature[known[0][0]] = (value, known[0][1])
    return by_feature


def _sentence(feature: str, taste: FeatureTaste) -> str:
    rest = f"; {', '.join(taste.accepted)} will do" if taste.accepted else ""
    but = f"; I refuse {', '.join(taste.refused)}" if taste.refused else ""
    return f"{feature[:1].upper()}{feature[1:]}: I like {taste.most} most{rest}{but}."


@cache
def _read_once(path: str) -> dict[str, dict[str, dict[str, FeatureTaste]]]:
    return read_tastes(path)
