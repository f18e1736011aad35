"""Names of the Hub, and the ordinary cache on a machine without a connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hub_toy import COMMIT, OTHER_COMMIT, put_into_cache
from huggingface_hub import constants
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.hub import (
    HubName,
    commit_of_snapshot,
    data_set_name,
    model_name,
    named_on_hub,
    place_of_model,
    require_reachable,
    snapshot,
)
from finegrained_rlhf.launch.checks.paths import check_inputs

PATHS = (
    "gpt2",
    "./t5",
    "/t5/large",
    "../models/t5",
    "a/b/c",
    "outputs/run/policy",
    "models/",
    "~/models",
    "",
    "-",
    "a b/c",
)
NO_REPOSITORY = ("a/b.", "a--b/c", "a/..", "a/b.git", "a/" + "b" * 96, ".hidden/model", "a/b@")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    return tmp_path / "model"


def test_names_of_models() -> None:
    assert model_name("google-t5/t5-large") == HubName("google-t5/t5-large")
    assert model_name("Qwen/Qwen2.5-0.5B_x@refs/pr/3") == HubName("Qwen/Qwen2.5-0.5B_x", "refs/pr/3")
    assert model_name("a/b", "v1") == model_name("a/b@v1", "v1") == HubName("a/b", "v1")
    with pytest.raises(ConfigError, match="the name says revision v1, the key revision says v2"):
        model_name("a/b@v1", "v2")


@pytest.mark.parametrize("text", [*PATHS, *NO_REPOSITORY, "a/b:train", "données/modèle"])
def test_what_looks_like_a_path_is_no_name(text: str) -> None:
    assert model_name(text) is None


def test_names_of_data_sets() -> None:
    assert data_set_name("trl-lib/tldr:train") == HubName("trl-lib/tldr", split="train")
    assert data_set_name("a/b@v1:main:test[:100]") == HubName("a/b", "v1", "main", "test[:100]")
    for text in ("a/b", "a/b/c:train", "C:/data:train", "data.json", "a/b:", "./a/b:train"):
        assert data_set_name(text) is None


def test_what_exists_here_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_on_hub({}, "path", "org/name") == ("model", HubName("org/name"))
    assert named_on_hub({"revision": "v1"}, "path", "org/name") == ("model", HubName("org/name", "v1"))
    (tmp_path / "org/name").mkdir(parents=True)
    assert named_on_hub({}, "path", "org/name") is None
    assert place_of_model("org/name") == Path("org/name")
    with pytest.raises(ModelError, match=r"org/name: a revision \(v1\) is for a model of the Hub"):
        place_of_model("org/name", "v1")


def test_a_cached_model_is_found_by_name_and_by_revision(cache: Path, model: Path) -> None:
    main = put_into_cache(cache, "org/name", model)
    old = put_into_cache(cache, "org/name", model, commit=OTHER_COMMIT, ref="v1")
    assert snapshot(HubName("org/name")) == main and commit_of_snapshot(main) == COMMIT
    assert place_of_model("org/name@v1") == old == place_of_model("org/name", "v1")
    assert place_of_model(f"org/name@{OTHER_COMMIT}") == old
    assert commit_of_snapshot(model) is None
    require_reachable(HubName("org/name", "v1"))


@pytest.mark.parametrize("revision", [None, "v1"])
def test_offline_it_says_what_to_fetch_and_how(cache: Path, model: Path, revision: str | None) -> None:
    put_into_cache(cache, "org/other", model)
    put_into_cache(cache, "org/name", model, ref="another")
    with pytest.raises(ModelError) as caught:
        snapshot(HubName("org/name", revision))
    text = str(caught.value)
    assert text.startswith("org/name: ") and "HF_HUB_OFFLINE is set" in text and str(cache) in text
    assert text.endswith(f"hf download org/name{' --revision v1' if revision else ''}") and "\n" not in text
    with pytest.raises(DataError, match="hf download org/name --repo-type dataset"):
        snapshot(HubName("org/name", revision, split="train"), "dataset")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (GatedRepoError, "asks for consent"),
        (RepositoryNotFoundError, "no such file or directory, and the Hub has no such model"),
        (RevisionNotFoundError, "has no revision v1"),
    ],
)
def test_what_the_hub_refuses_is_one_line(kind: Any, said: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise kind.__new__(kind, "many\nlines")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match=said) as caught:
        snapshot(HubName("org/name", "v1"))
    assert "\n" not in str(caught.value)


def job(**keys: Any) -> dict[str, Any]:
    return {"_target_": "finegrained_rlhf.models.PolicyConfig", **keys}


def test_the_configuration_check_knows_names(cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_cache(cache, "org/name", model, ref="v1")
    check_inputs({"policy": job(path="org/name", revision="v1")})
    with pytest.raises(ConfigError, match="policy.path: org/name: no such file or.*hf download org/name$"):
        check_inputs({"policy": job(path="org/name")})
    for path in ("nowhere", "./org/name", "/org/name", "a/b/c"):
        with pytest.raises(ConfigError, match=f"policy.path: {path}: no such file or directory"):
            check_inputs({"policy": job(path=path)})
    with pytest.raises(ConfigError, match="policy.adapter: org/name: no such file"):  # adapters are directories
        check_inputs({"policy": job(path=str(model), adapter="org/name")})
    with pytest.raises(ConfigError, match="two|revision v1, the key revision says v2"):
        check_inputs({"policy": job(path="org/name@v1", revision="v2")})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    check_inputs({"policy": job(path="org/name")})  # where there is a connection, loading asks for it
