"""Values are taken as they are typed; what Hydra's grammar reads by itself is left alone; near keys are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.launch.checks.help import explained
from finegrained_rlhf.launch.checks.nearest import nearest, suggestion
from finegrained_rlhf.launch.command_line import hydras_words, read_command_line
from finegrained_rlhf.launch.filling import fill, without_paths_of_others

ODD = st.text(st.sampled_from("aé张😀 '\"\\=:;,#!&<>(){}[]$%`~|*\t\n0-"), min_size=1, max_size=12) | st.text(max_size=8)


def value_of(word: str) -> Any:
    """The value of an override as a configuration has it."""
    value = OverridesParser.create().parse_override(word).value()
    resolved = OmegaConf.to_container(OmegaConf.create({"dir": "out", "x": value}), resolve=True)
    assert isinstance(resolved, dict)
    return resolved["x"]


def is_read(word: str) -> bool:
    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return False
    return True


@given(ODD)
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_value(text: str) -> None:
    """What Hydra does not read arrives letter by letter; what it reads is not touched."""
    word = f"x={text}"
    (made,) = hydras_words([word])
    if is_read(word):
        assert made == word
    elif not text.strip().startswith(("[", "{")) and "${" not in text:
        assert value_of(made) == text
    else:
        assert is_read(made)
    assert hydras_words([made]) == [made]


@given(st.lists(st.text(st.sampled_from("aé张😀'=:;#!&$%`~|*?- "), min_size=1, max_size=8), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_texts_are_a_list(texts: list[str]) -> None:
    word = f"x=[{','.join(texts)}]"
    (made,) = hydras_words([word])
    if is_read(word):
        assert made == word
    elif not any(text.strip().startswith("'") for text in texts):
        assert [str(item) for item in value_of(made)] == [text.strip() for text in texts]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data=ä.json", "ä.json"),
        ("data=[:, ]", [":", ""]),
        ("data='ä.json'", "ä.json"),
        ("output_dir=out/a=b", "out/a=b"),
        ("text=it's", "it's"),
        ("text=it's, or not", "it's, or not"),
        ("text=f(x)", "f(x)"),
        ("text=5 €", "5 €"),
        ("text=C:\\ä\\", "C:\\ä\\"),
        ("annotators=[Jörg,张]", ["Jörg", "张"]),
        ("queries=[What's new?, it's]", ["What's new?", "it's"]),
        ("queries=['a, b',ä]", ["a, b", "ä"]),
        ("queries=[[ä,b],[c]]", [["ä", "b"], ["c"]]),
        ("weights={a: ä, b: 1}", {"a": "ä", "b": 1}),
        ("text=[open", "[open"),
        ("text=]", "]"),
        ("+new.key=ä", "ä"),
        ("++new.key=ä", "ä"),
    ],
)
def test_values(word: str, value: Any) -> None:
    (made,) = hydras_words([word])
    assert value_of(made) == value


def test_only_a_multirun_has_several_values() -> None:
    assert hydras_words(["data=ä,ö"]) == ["data='ä,ö'"]
    assert hydras_words(["data=ä,ö"], multirun=True) == ["data='ä','ö'"]
    for left in ("seed=0,1", "seed=range(1,5)", "~data", "data=", "text=a b", "reward=a,b", "lr=1e-4", "x=${seed}"):
        assert hydras_words([left]) == [left]
        assert hydras_words([left], multirun=True) == [left]


def test_an_interpolation_stays_one_beside_other_letters() -> None:
    (made,) = hydras_words(["data=${dir}/ä.json"])
    assert value_of(made) == "out/ä.json"


def test_options_may_stand_anywhere() -> None:
    line = read_command_line(["seed=1", "--config-dir", "my conf", "data=ä", "--info", "config", "-m", "--help"])
    assert line.overrides == ("seed=1", "data='ä'")
    assert line.config_directory == "my conf" and line.help
    assert line.words == ["seed=1", "data='ä'", "--config-dir", "my conf", "--info", "config", "-m", "--help"]
    with pytest.raises(ConfigError, match="unrecognized arguments: --confi-dir"):
        read_command_line(["--confi-dir", "x"])
    with pytest.raises(ConfigError, match="--config-dir"):
        read_command_line(["seed=1", "--config-dir"])


CONFIG = {
    "data": None,
    "seed": 0,
    "total_steps": 3,
    "output_dir": "???",
    "batches": {"batch_size": 4},
    "reward_model": {"_target_": "x", "epochs": 1, "optimizer": {"lr": 1e-4}, "batches": {"batch_size": 8}},
    "rollout": {"samples_per_prompt": 4, "temperature": 1.0, "max_new_tokens": 8},
    "ppo": {"kl": {"beta": 0.1, "place": "loss"}},
}


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        ("epochs", "; did you mean reward_model.epochs?"),
        ("optimizer.lr", "; did you mean reward_model.optimizer.lr?"),
        ("lr", "; did you mean reward_model.optimizer.lr?"),
        ("learning_rate", "; did you mean reward_model.optimizer.lr?"),
        ("batch_size", "; did you mean batches.batch_size?"),
        ("rollout.samples", "; did you mean rollout.samples_per_prompt?"),
        ("rollout.tempature", "; did you mean rollout.temperature?"),
        ("rollout.beta", "; did you mean ppo.kl.beta?"),
        ("ppo.kl.bta", "; did you mean ppo.kl.beta?"),
        ("max_steps", "; did you mean total_steps?"),
        ("totalsteps", "; did you mean total_steps?"),
        ("seeed", "; did you mean seed?"),
        ("data.path", "; data takes a value itself: data=…"),
        ("no_such_key", ""),
        ("_target_", ""),
    ],
)
def test_the_key_that_was_meant(unknown: str, said: str) -> None:
    assert suggestion(unknown, CONFIG) == said


def test_several_keys_are_as_near() -> None:
    assert nearest("lr", ["policy.lr", "value.lr", "deep.er.lr"]) == ["policy.lr", "value.lr"]


REWARD = {"components": {"length": {"_target_": "my.WordLimit"}}, "weights": {"length": 1.0}}


def test_a_reward_of_components_and_weights_alone_is_one(caplog: pytest.LogCaptureFixture) -> None:
    """What an experiment sets for components of another reward is left out, and said."""
    paths = {name: {"path": f"models/{name}"} for name in ("relevance", "factuality")}
    given = {**REWARD, "components": {**REWARD["components"], **paths}}
    ppo = {"_target_": "finegrained_rlhf.training.ppo.TrainPPO", "reward": given}
    read = fill(OmegaConf.create(ppo)).reward
    assert read._target_ == "finegrained_rlhf.rewards.RewardConfig" and read.end_penalty == 0.0
    assert {key: read[key] for key in REWARD} == REWARD
    assert "reward.components.relevance.path is not read" in caplog.text
    weighed = {**given, "weights": {"length": 1.0, "relevance": 0.3, "factuality": 0.5}}
    assert without_paths_of_others({**ppo, "reward": weighed})["reward"]["components"].keys() >= paths.keys()
    for left in (
        {"_target_": "finegrained_rlhf.inference.Evaluate", "reward": given},
        {"_target_": "finegrained_rlhf.training.ppo.TrainPPO", "reward": None},
    ):
        assert without_paths_of_others(left) == left


def test_help_reads_what_the_run_reads(tmp_path: Path) -> None:
    (tmp_path / "my conf/taxonomy").mkdir(parents=True)
    text = "_target_: finegrained_rlhf.feedback.Taxonomy\nname: support\ncategories: {}\n"
    (tmp_path / "my conf/taxonomy/support_mails.yaml").write_text(text, encoding="utf-8")
    line = read_command_line(["--config-dir", str(tmp_path / "my conf"), "taxonomy=support_mails", "data=ä", "--help"])
    shown = explained("inspect_feedback", line)
    assert "taxonomy.name: support" in shown and "qa_feedback, ragtruth, support_mails" in shown and "data: ä" in shown
