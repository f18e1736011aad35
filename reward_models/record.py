"""What a reward model is, in a record beside its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json
from reward_models.kinds import KINDS, GlobalAttention, Kind, SegmentKind, kind_named
from reward_models.parts import PassageChoice

REWARD_MODEL_RECORD = "reward_model.json"
LEAST_STD = 1e-3
"""Scores of answers closer together than this have not been learnt: in fp32 they are a few thousand rounding steps
apart, and a reward made of them, standardised, is made of rounding."""
_NO_ERROR = {"no error", "o", "none", "ok", "correct"}
_HAS_ERROR = re.compile(r"(^|.* )(error|err)$")
_PIPELINE = re.compile(r"rules|english|[a-z]{2,3}_[a-z]+_[a-z]+_[a-z]+")


NAMED_SEGMENTERS = "rules, english or a spaCy pipeline (en_core_web_sm)"
"""What a record may say of a segmenter: whoever made it may be a stranger, and a directory is opened by its owner."""


def may_name(segmenter: object) -> bool:
    """Whether a record may name this segmenter: one of `NAMED_SEGMENTERS`."""
    return isinstance(segmenter, str) and _PIPELINE.fullmatch(segmenter) is not None


def check_input_settings(global_attention: str, passages: str) -> None:
    """Raise ConfigError where one of the two is no choice."""
    of = {"global_attention": (global_attention, GlobalAttention), "passages": (passages, PassageChoice)}
    for name, (value, choice) in of.items():
        if value not in get_args(choice):
            raise ConfigError(f"{name} must be one of {', '.join(get_args(choice))}, got {value!r}")


@dataclass(frozen=True)
class RewardModelRecord:
    """What a reward model is, beside its weights.

    Attributes:
        kind: name of its kind (`reward_models/kinds.py`).
        global_attention: which tokens of a Longformer see everything: `none`, `first` (the class token) or
            `separators` (and the class token). Other models take no notice.
        max_length: longest input in tokens.
        segmenter: how answers were cut in training (`rules` or a spaCy pipeline).
        mean: mean raw score of the training outputs; None for segment models and before it is measured.
        std: their standard deviation (of the population), > 0.
        passages: what an input that is too long keeps of its passages: their beginning (`first`), or the sentences
            that share most words with the `question`, or with question and `answer`.
        counts: whether counted words are added to what the head says (`encoders/counts.py`).
        passage_tokens: the most tokens of passages that are read; None for as many as fit.
        prefixes: whether it was trained to judge each segment in the prefix of the answer that decides where it ends.
        own_kind: what a segment kind of another taxonomy is (`SegmentKind.values`); None for QA-FEEDBACK's kinds.
    """

    kind: str
    global_attention: GlobalAttention = "none"
    max_length: int = 2048
    segmenter: str = "rules"
    mean: float | None = None
    std: float | None = None
    passages: PassageChoice = "first"
    counts: bool = False
    passage_tokens: int | None = None
    prefixes: bool = False
    own_kind: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _ = self.definition  # raises
        check_input_settings(self.global_attention, self.passages)
        if self.std is not None and not self.std > 0:
            raise ConfigError(f"the standard deviation of a reward model's scores must be positive, got {self.std}")

    @classmethod
    def of(cls, kind: Kind, **settings: Any) -> RewardModelRecord:
        """The record of a model of a kind; what the kind is goes with it where its name does not say it."""
        own = kind.values() if isinstance(kind, SegmentKind) and KINDS.get(kind.name) != kind else None
        return cls(kind.name, own_kind=own, **settings)

    @property
    def definition(self) -> Kind:
        """The kind itself: form, density, labels and inputs."""
        return kind_named(self.kind) if self.own_kind is None else SegmentKind.of_values(self.kind, self.own_kind)

    @property
    def named_segmenter(self) -> str:
        """The segmenter, for whoever has no other word for it than the record, which may be a stranger's.

        Raises:
            ModelError: it is a directory or a package that is no spaCy pipeline by its name.
        """
        if not may_name(self.segmenter):
            raise ModelError(
                f"{REWARD_MODEL_RECORD}: segmenter: {self.segmenter!r}: a record may name {NAMED_SEGMENTERS}; where "
                "you know this one, name it yourself: segmenter=…"
            )
        return self.segmenter

    @property
    def labels_segments(self) -> bool:
        """True for a model with a label at each separator, False for one scalar an answer."""
        return self.definition.form == "segment"

    @property
    def granularity(self) -> str:
        """What it judges: each `sub_sentence`, `sentence` or `response`."""
        return self.definition.density


def missing_record(directory: Path) -> ModelError:
    """What to say of a model without a record."""
    return ModelError(f"{directory}: no {REWARD_MODEL_RECORD}, so say in the configuration of which kind the model is")


def read_reward_model_record(directory: Path) -> RewardModelRecord | None:
    """The record saved beside a model; None where there is none (a model made elsewhere).

    Raises:
        ModelError: it is there and not readable.
    """
    path = directory / REWARD_MODEL_RECORD
    if not path.is_file():
        return None
    try:
        raw = {
            "passages": "first",
            "counts": False,
            "passage_tokens": None,
            "prefixes": False,
            "own_kind": None,
            **read_json(path),
        }  # older records do not say
        return RewardModelRecord(**{field.name: raw[field.name] for field in fields(RewardModelRecord)})
    except (DataError, ConfigError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not a reward model record ({error})") from None


def error_label_ids(id2label: dict[Any, str]) -> frozenset[int]:
    """Ids of the labels that mean "this segment has an error", read from a model's `id2label`.

    Raises:
        ModelError: a label is neither an error (`has_error`, `F-ERR`, …) nor its absence (`no_error`, `O`, …), or one
            of the two is missing.
    """
    names = {int(key): re.sub(r"[-_\s]+", " ", str(name)).strip().lower() for key, name in id2label.items()}
    clean = {key for key, name in names.items() if name in _NO_ERROR}
    wrong = {key for key, name in names.items() if key not in clean and _HAS_ERROR.match(name)}
    if not clean or not wrong or len(clean) + len(wrong) != len(names):
        raise ModelError(
            f"the labels {list(id2label.values())} do not fit: expected one that means an error (such as 'has_error') "
            "and one that means none (such as 'no_error')"
        )
    return frozenset(wrong)
