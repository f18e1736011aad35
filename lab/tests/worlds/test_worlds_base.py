"""What holds for every generated world: its files for a seed, the manifest that seals them, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.worlds.dialogue import MakeDialogueWorld
from finegrained_lab.worlds.rewrite import MakeRewriteWorld
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import settings_of
from finegrained_rlhf.factworld import MakeFactWorld
from finegrained_rlhf.factworld.base import World

WORLDS: dict[str, tuple[type[World[Any]], dict[str, Any]]] = {
    "factworld": (MakeFactWorld, {"train": 12, "dev": 3, "test": 4, "sft_train": 9, "sft_dev": 2}),
    "dialogue": (
        MakeDialogueWorld,
        {"documents": 8, "unseen_documents": 3, "train": 12, "dev": 3, "test": 4, "unseen": 5},
    ),
    "rewrite": (MakeRewriteWorld, {"train": 12, "dev": 3, "test": 4}),
}
GOLDEN = {
    "factworld": "95244fafee6c38d94878ac568213bdfb6a3d8a2b912307de8eac1dfbc67d0586",
    "dialogue": "5cc4513c6ef5537e6e4fd6683116f08cb623ebdd7221ebc01e4ff7f4e15c91e1",
    "rewrite": "d45a5f4bf91679cd599d88785d8015315dd10b8067d8cdf507307ed85c8b2cf1",
}
"""SHA-256 of the names and contents of all files but the manifest for seed 5: those of before the worlds shared their
base, DialogueWorld's since it was made anew. What committed tables were made from must not change."""


def made(name: str, directory: Path, **changes: Any) -> World[Any]:
    """A small world of seed 5, written."""
    kind, sizes = WORLDS[name]
    world = kind(str(directory), **{"seed": 5, **sizes, **changes})
    world.run()
    return world


@pytest.mark.parametrize("name", WORLDS)
def test_a_seed_gives_the_files_it_always_gave(name: str, tmp_path: Path) -> None:
    made(name, tmp_path)
    digest = hashlib.sha256()
    for path in sorted(tmp_path.iterdir()):
        if path.name != "manifest.json":
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    assert digest.hexdigest() == GOLDEN[name]


@pytest.mark.parametrize("name", WORLDS)
def test_the_manifest_says_what_lies_there(name: str, tmp_path: Path) -> None:
    world = made(name, tmp_path / "a")
    manifest = json.loads((tmp_path / "a/manifest.json").read_text())
    room = "finegrained_rlhf.factworld" if name == "factworld" else f"finegrained_lab.worlds.{name}"
    assert manifest["world"] == f"{room}.{type(world).__name__}"
    assert manifest["configuration"]["seed"] == 5 and "output_dir" not in manifest["configuration"]
    assert {split: manifest["configuration"][split] for split in world.splits} == {
        split: WORLDS[name][1].get(split, 0) for split in world.splits
    }
    assert {*manifest["files"], "manifest.json"} == {path.name for path in (tmp_path / "a").iterdir()}
    assert {"world.jsonl", "corpus.txt"} < set(manifest["files"])
    for file, digest in manifest["files"].items():
        assert hashlib.sha256((tmp_path / "a" / file).read_bytes()).hexdigest() == digest
    made(name, tmp_path / "b")
    assert (tmp_path / "a/manifest.json").read_bytes() == (tmp_path / "b/manifest.json").read_bytes()


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_that_was_not_finished_has_no_manifest(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(name, tmp_path)

    def fail(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(WORLDS[name][0], "vocabulary", fail)
    with pytest.raises(OSError, match="no space"):
        made(name, tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    monkeypatch.undo()
    made(name, tmp_path)
    assert (tmp_path / "manifest.json").is_file()


@pytest.mark.parametrize("name", WORLDS)
def test_files_of_an_earlier_world_go_and_those_of_others_stay(name: str, tmp_path: Path) -> None:
    world = made(name, tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    made(name, tmp_path, dev=0)
    assert not (tmp_path / f"dev{world.suffix}").exists() and (tmp_path / f"test{world.suffix}").is_file()
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", WORLDS)
def test_negative_sizes_are_refused(name: str, tmp_path: Path) -> None:
    for split in WORLDS[name][0].splits:
        with pytest.raises(ConfigError, match=f"{split} must be 0 or more, got -1"):
            made(name, tmp_path / "never", **{split: -1})
    assert not (tmp_path / "never").exists()


def test_no_two_worlds_share_random_numbers() -> None:
    first = [kind("unused", seed=5).rng("test").random() for kind, _ in WORLDS.values()]
    assert len(set(first)) == len(WORLDS)
    assert MakeRewriteWorld("unused", seed=5).rng("test").random() == first[2]
    assert MakeRewriteWorld("unused", seed=6).rng("test").random() != first[2]


@pytest.mark.parametrize("name", WORLDS)
def test_the_keys_of_the_base_are_keys_of_every_world(name: str) -> None:
    settings = settings_of(WORLDS[name][0])
    assert [*settings][:2] == ["output_dir", "seed"]
    assert {*WORLDS[name][0].splits, "world"} < set(settings)
    assert all(setting.documentation for setting in settings.values())
