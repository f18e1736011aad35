"""The kinds of reward model: what each says of itself, and that nothing else decides by a name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from feedback_samples import LAKE, record
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

import reward_models
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.feedback.records import C1_TYPES, C2_TYPES, Feedback
from finegrained_rlhf.feedback.taxonomy import Taxonomy
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.config import RewardModelConfig
from reward_models.job import MakeTinyRewardModels, TrainRewardModel
from reward_models.kinds import KINDS, PairKind, SegmentKind, kind_named, kinds_of
from reward_models.record import RewardModelRecord, error_label_ids
from reward_models.scorers import EditMassScorer, SegmentScorer, SequenceScorer
from reward_models.trust.job import EvaluateRewardModel

SEGMENTER = SpacySegmenter()
COHERENCE = SegmentKind(
    name="coherence",
    density="sentence",
    reads_passages=False,
    errors=("Incoherent",),
    unlabelled=("Irrelevant",),
)


def test_what_the_four_kinds_are() -> None:
    table = {k.name: (k.form, k.density, k.reads_passages) for k in KINDS.values()}
    assert table == {
        "relevance": ("segment", "sub_sentence", False),
        "factuality": ("segment", "sentence", True),
        "completeness": ("sequence", "response", True),
        "preference": ("sequence", "response", True),
    }
    spans = {k.name: (k.errors, k.unlabelled) for k in KINDS.values() if isinstance(k, SegmentKind)}
    assert spans == {"relevance": (C1_TYPES, ()), "factuality": (C2_TYPES, C1_TYPES)}


def settings_of(name: str) -> RewardModelConfig:
    root = Path(reward_models.__file__).parent.parent
    with initialize_config_dir(str(root / "conf" / "reward_model"), version_base=None):
        settings: Any = compose(name)
    made: RewardModelConfig = instantiate(settings, _convert_="all")
    return made


@pytest.mark.parametrize("name", list(KINDS))
def test_the_configuration_of_a_kind_names_it(name: str) -> None:
    assert settings_of(name).kind == name


def test_an_unknown_kind_is_one_error_wherever_it_is_named(tmp_path: Path) -> None:
    given: Any = "style"
    good = settings_of("relevance")
    for name_it in (
        lambda: kind_named(given),
        lambda: RewardModelRecord(given),
        lambda: TrainRewardModel(output_dir="x", data="x", model="x", reward_model=replace(good, kind=given)),
        lambda: SegmentScorer("x", kind=given),
        lambda: SequenceScorer("x", kind=given),
        lambda: EvaluateRewardModel("x", "data.json", "out.json", kind=given),
        lambda: MakeTinyRewardModels("x", str(tmp_path), (given,)),
    ):
        with pytest.raises(
            ConfigError,
            match="kind must be one of relevance, factuality, completeness, preference, got 'style'",
        ):
            name_it()


def test_a_kind_built_from_values_makes_its_own_labels_and_inputs() -> None:
    text = "It is very cold in there, and it is wide on all sides. It was warm they say. Yes it was so cold here."
    first, second = "It is very cold in there, and it is wide on all sides", "it was so cold here"
    row = record(text, [(first, "Incoherent"), (second, "Irrelevant"), (first, "Irrelevant")])
    labels = COHERENCE.labels(row, SEGMENTER)
    assert [text[a:b].split()[0] for a, b in labels.spans] == ["It", "It", "Yes"]
    assert labels.labels == (1, 0, None)
    assert [mark.error_type for mark in COHERENCE.marks(row)] == ["Incoherent"]
    shown = COHERENCE.parts("Why?", [LAKE], ["It is cold."])
    assert shown.context == "" and shown.before == "question: Why? answer:" and shown.segments == ("It is cold.",)
    fine = replace(COHERENCE, density="sub_sentence", reads_passages=True)
    assert len(fine.labels(row, SEGMENTER).spans) > 3
    assert LAKE.title in fine.parts("Why?", [LAKE], ["It is cold."]).context


def test_a_pair_kind_need_not_read_passages() -> None:
    blind = replace(kind_named("preference"), name="blind", reads_passages=False)
    assert isinstance(blind, PairKind)
    with_passages, without = kind_named("preference"), blind.parts("Why?", [LAKE], "It is cold.")
    assert isinstance(with_passages, PairKind)
    assert LAKE.title in with_passages.parts("Why?", [LAKE], "It is cold.").context
    assert without.context == "" and LAKE.title not in without.before + without.after


@pytest.mark.parametrize(
    "change",
    [
        {"name": "a/b"},
        {"density": "own"},
        {"density": "word"},
        {"separator": "x"},
        {"errors": ()},
        {"unlabelled": C1_TYPES},
    ],
)
def test_a_kind_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="reward model kind"):
        replace(COHERENCE, **change)
    with pytest.raises(ConfigError, match="a sequence model cannot judge each 'sentence'"):
        replace(kind_named("preference"), density="sentence")


def test_saved_records_hold_the_name() -> None:
    saved = json.loads(json.dumps(vars(RewardModelRecord("factuality"))))
    assert saved["kind"] == "factuality" and saved["segmenter"] == "rules"


def test_no_other_module_knows_a_kind_by_its_name() -> None:
    root = Path(reward_models.__file__).parent
    naming = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r'["\'](relevance|factuality|completeness|preference)["\']', line)
        and 'config.get("completeness"' not in line  # a key of configurations
    }
    assert naming == {"kinds.py"}


def test_a_kind_that_counts_the_words_of_corrections() -> None:
    """Labels add up to the cost of the edit; a model of it has a label for each number, and pays what it expects."""
    taxonomy = Taxonomy("own", {"mass": {"density": "sentence", "words_up_to": 3, "types": {"changed": {}}}})
    kind = kinds_of(taxonomy)["mass"]
    assert isinstance(kind, SegmentKind)
    assert RewardModelRecord.of(kind).definition == kind
    assert kind.label_names == ("no_error", "1_words_error", "2_words_error", "3_words_error")
    assert error_label_ids(dict(enumerate(kind.label_names))) == {1, 2, 3}
    draft, edited = "It is so. We say no! Bye.", "It is not so. They do not say no at all! Bye."
    labels = kind.label(draft, Feedback((), (), edited), SpacySegmenter("english"))
    assert labels.labels == (1, 3, 0) and labels.has_error == 2  # five words in the second one, of at most three
    with pytest.raises(DataError, match="correction"):
        kind.label(draft, Feedback((), (), None), SpacySegmenter("english"))
    scorer = EditMassScorer("a model that is not loaded")
    scorer._kind = kind
    nothing = lambda: SegmentScores(((), ((0, 2),)), ((), (-1.0,)))  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SegmentScorer, "start", lambda *_: nothing)
        assert scorer.score([], []).values == ((-3.0,), (-1.0,)) and scorer.score([], []).spans[0] == ((0, 0),)
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0], [0.0, 0.0, 100.0, 100.0]])
    assert torch.allclose(EditMassScorer._worth(cast(Any, None), logits), torch.tensor([-1.5, 0.0, -2.5]))
