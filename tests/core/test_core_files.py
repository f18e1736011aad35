"""Files are whole or absent, and broken ones are named."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from finegrained_rlhf.core import files
from finegrained_rlhf.core.errors import DataError, FineGrainedError
from finegrained_rlhf.core.records import Sample, pad_rows


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert names(path.parent) == ["file.txt"]


def test_the_file_appears_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    with files.atomic_path(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert temporary.parent == path.parent  # a rename is atomic only inside one file system
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_directory_is_replaced_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "model"
    for content in ("a", "b"):
        with files.atomic_directory(target) as temporary:
            (temporary / content).write_text(content)
    assert names(target) == ["b"]
    with pytest.raises(KeyboardInterrupt), files.atomic_directory(target) as temporary:
        (temporary / "c").write_text("c")
        raise KeyboardInterrupt
    assert names(target) == ["b"]
    assert names(tmp_path) == ["model"]


def test_a_directory_comes_back_when_the_last_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    with files.atomic_directory(target) as temporary:
        (temporary / "a").write_text("a")
    real = os.replace

    def replace(source: Path, destination: Path) -> None:
        if str(source).endswith(".tmp"):
            raise OSError("no")
        real(source, destination)

    monkeypatch.setattr(files.os, "replace", replace)
    with pytest.raises(OSError, match="no"), files.atomic_directory(target) as temporary:
        (temporary / "b").write_text("b")
    assert names(tmp_path) == ["model"]
    assert names(target) == ["a"]


def test_json_round_trip_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {"text": "é ↔ 中", "numbers": [1, 2.5, None, True]}
    files.write_json(path, value)
    assert files.read_json(path) == value
    assert "é" in path.read_text(encoding="utf-8")
    with pytest.raises(ValueError):
        files.write_json(path, {"x": float("nan")})
    assert files.read_json(path) == value


def test_jsonl_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"a": 1}, {"text": "line\u2028separator\nand newline"}]  # U+2028 must not cut a line
    files.write_jsonl(path, iter(rows))
    assert files.read_jsonl(path) == rows
    path.write_text(path.read_text(encoding="utf-8") + "\n\n" + json.dumps({"b": 2}), encoding="utf-8")
    assert files.read_jsonl(path) == [*rows, {"b": 2}]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b'{"a": [1, 2', "truncated"), (b'{"a": "\xff"}', "not UTF-8")],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    for read in (files.read_json, files.read_jsonl):
        with pytest.raises(DataError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_bad_line_is_counted_from_zero(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(DataError, match="record 1"):
        files.read_jsonl(path)
    path.write_text("[1]\n")
    with pytest.raises(DataError, match="record 0: expected a JSON object, got list"):
        files.read_jsonl(path)


def test_one_document_where_lines_are_expected_is_said(tmp_path: Path) -> None:
    path = tmp_path / "whole.json"
    path.write_text(json.dumps({"a": {"b": 1}}, indent=1))
    with pytest.raises(DataError, match="it is one JSON document; expected JSON lines"):
        files.read_jsonl(path)
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(DataError, match="record 1: .*is the file truncated"):
        files.read_jsonl(path)


def test_an_error_of_writing_names_the_file(tmp_path: Path) -> None:
    """As write() raises it, an error of a full disk has no name."""
    full = OSError(errno.ENOSPC, "No space left on device")
    for place in (files.atomic_path, files.atomic_directory, files.naming):
        with pytest.raises(OSError) as caught, place(tmp_path / "page.html"):
            raise OSError(*full.args)
        assert caught.value.filename == str(tmp_path / "page.html")
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError) as caught, files.atomic_path(tmp_path / "page.html"):
        raise OSError(errno.ENOENT, "No such file", "another")
    assert caught.value.filename == "another"


def test_data_errors_are_filled_in_without_losing_what_they_know() -> None:
    error = DataError("wrong", field="a.b", record=3)
    assert str(error.at(file="f.json", record=9)) == "file f.json, record 3, field a.b: wrong"
    assert str(DataError("wrong")) == "wrong"
    assert isinstance(error, FineGrainedError)


def test_rows_are_padded_on_the_right() -> None:
    ids, mask = pad_rows([[5, 6, 7], [], [8]], pad=9)
    assert ids.tolist() == [[5, 6, 7], [9, 9, 9], [8, 9, 9]]
    assert mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert pad_rows([], pad=0)[0].shape == (0, 1)
    assert pad_rows([[]], pad=4)[0].tolist() == [[4]]


@pytest.mark.parametrize("wrong", [{"n": 0}, {"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_sampling_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="need n >= 1"):
        Sample(**{"n": 1, **wrong})
