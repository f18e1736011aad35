"""What `python -m guards.compare` sees of two trees of results, and what it leaves out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from finegrained_rlhf.core.errors import ConfigError
from guards.differences import Difference, Exclusions, Tree, compare_trees, largest

PAGE = """<html><style>a {}</style><body><h1>Run</h1><p>score {score}</p><script>var x = 1;</script>
<svg><text>0.5</text></svg><h2>Time</h2><td>3.5</td></body></html>"""


def differences(*arguments: Any) -> tuple[Difference, ...]:
    return compare_trees(*arguments).differences


def make(root: Path) -> Path:
    """A tiny tree of results with a file of every kind."""
    (root / "run/policy").mkdir(parents=True)
    weights = {"head": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "norm": torch.tensor([1.0], dtype=torch.bfloat16)}
    save_file(weights, root / "run/policy/model.safetensors")
    rows = [{"step": 1, "loss": 0.5, "time/step_s": 1.0}, {"step": 2, "loss": 0.25, "time/step_s": 2.0}]
    (root / "run/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "run/config.yaml").write_text(f"ppo:\n  clip: 0.2\n  _target_: a.B\ndata: {root}/data.json\n")
    (root / "scores.json").write_text(json.dumps({"systems": [{"name": "ours", "f1": 0.5}], "seconds": 3.1}))
    (root / "table.md").write_text("# Scores\n| system | F1 |\n|---|---|\n| ours | 71.5 |\n")
    (root / "table.csv").write_text("system,f1\nours,71.5\n")
    (root / "page.html").write_text(PAGE.replace("{score}", "0.5"))
    (root / "printed.txt").write_text("best at step 2\n")
    np.save(root / "vectors.npy", np.array([1.0, 2.0], dtype=np.float32))
    (root / "figure.png").write_bytes(b"\x89PNG")
    return root


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / file).read_text()
        assert text.count(old) == 1
        (root / file).write_text(text.replace(old, new))

    return change


def moved_weight(root: Path) -> None:
    weights = {"head": torch.tensor([[1.0, 2.0], [3.0, 4.5]]), "norm": torch.tensor([1.0], dtype=torch.bfloat16)}
    save_file(weights, root / "run/policy/model.safetensors")


def renamed_weight(root: Path) -> None:
    weights = {"top": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "norm": torch.tensor([1.0], dtype=torch.bfloat16)}
    save_file(weights, root / "run/policy/model.safetensors")


def moved_vector(root: Path) -> None:
    np.save(root / "vectors.npy", np.array([1.0, 2.0 + 1e-6], dtype=np.float32))


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Tree, Tree]:
    """Two trees that are equal but for where they lie."""
    sides = [make(tmp_path / name) for name in ("base", "new")]
    base, new = (Tree(root, {str(root): "RESULTS"}) for root in sides)
    return base, new


def test_equal_trees_are_equal_wherever_they_lie(trees: tuple[Tree, Tree]) -> None:
    assert differences(*trees) == () and compare_trees(*trees).compared == 32  # counted by hand
    bare = differences(Tree(trees[0].root), Tree(trees[1].root))
    assert [one.name for one in bare] == ["run/config.yaml: data"]


@pytest.mark.parametrize(
    ("change", "names", "size"),
    [
        (moved_weight, ["run/policy/model.safetensors: head"], 0.5),
        (renamed_weight, ["run/policy/model.safetensors: head", "run/policy/model.safetensors: top"], None),
        (moved_vector, ["vectors.npy: array"], pytest.approx(1e-6, rel=0.1)),
        (replaced("run/metrics.jsonl", "0.25", "0.26"), ["run/metrics.jsonl: 1.loss"], pytest.approx(0.01)),
        (replaced("run/config.yaml", "0.2\n", "0.3\n"), ["run/config.yaml: ppo.clip"], pytest.approx(0.1)),
        (replaced("scores.json", "0.5", '"half"'), ["scores.json: systems.0.f1"], None),
        (replaced("scores.json", '"f1"', '"F1"'), ["scores.json: systems.0.f1", "scores.json: systems.0.F1"], None),
        (replaced("table.md", "71.5", "70.5"), ["table.md: line 4.F1"], 1.0),
        (replaced("table.csv", "ours", "theirs"), ["table.csv: line 2.system"], None),
        (replaced("page.html", "score 0.5", "score 0.6"), ["page.html: Run 2"], None),
        (replaced("page.html", "3.5", "4"), ["page.html: Time 2"], 0.5),
        (replaced("page.html", "<text>0.5", "<text>0.6"), [], None),
        (replaced("printed.txt", "step 2", "step 1"), ["printed.txt: line 1.1"], None),
        (lambda root: (root / "figure.png").write_bytes(b"\x89PNH"), ["figure.png"], None),
        (lambda root: (root / "figure.png").unlink(), ["figure.png"], None),
        (lambda root: (root / "more.txt").write_text("x"), ["more.txt"], None),
    ],
)
def test_every_change_is_seen_by_its_name(
    trees: tuple[Tree, Tree], change: Callable[[Path], None], names: list[str], size: float | None
) -> None:
    change(trees[1].root)
    found = differences(*trees)
    assert [one.name for one in found] == names and largest(found) == size


def test_what_is_left_out_is_listed_with_a_reason(trees: tuple[Tree, Tree], tmp_path: Path) -> None:
    changed = trees[1].root
    replaced("run/metrics.jsonl", '"time/step_s": 1.0', '"time/step_s": 9.0')(changed)
    replaced("run/config.yaml", "a.B", "c.B")(changed)
    replaced("scores.json", "3.1", "3.2")(changed)
    assert len(differences(*trees)) == 3
    assert differences(*trees, Exclusions.read(), "case/") == ()
    replaced("scores.json", "0.5", "0.6")(changed)
    assert [one.name for one in differences(*trees, Exclusions.read(), "case/")] == ["case/scores.json: systems.0.f1"]
    (tmp_path / "list.toml").write_text("[[excluded]]\npattern = '.*'\n")
    with pytest.raises(ConfigError, match="expected pattern and why"):
        Exclusions.read(tmp_path / "list.toml")


def test_defaults_that_the_new_side_writes_out_are_left_out_and_a_changed_one_is_not(tmp_path: Path) -> None:
    texts = {"base": "beta: 1\nepochs: 4\nlost: 2\n", "new": "beta: 1.0\nepochs: 5\nfilled: 3\n"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    found = differences(Tree(tmp_path / "base"), Tree(tmp_path / "new"), Exclusions.read(), "case/")
    assert [one.name for one in found] == ["case/config.yaml: epochs", "case/config.yaml: lost"]


def test_not_a_number_equals_itself_and_nothing_else(tmp_path: Path) -> None:
    for name, text in (("base", "NaN"), ("new", "NaN"), ("other", "1.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text(f'{{"loss": {text}}}')
        save_file({"w": torch.tensor([float(text)])}, tmp_path / name / "a.safetensors")
    base, new, other = (Tree(tmp_path / name) for name in ("base", "new", "other"))
    assert differences(base, new) == ()
    assert [one.name for one in differences(base, other)] == ["a.json: loss", "a.safetensors: w"]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_tensors_of_every_kind(tmp_path: Path, kind: torch.dtype) -> None:
    for name, value in (("base", 0), ("new", 1)):
        (tmp_path / name).mkdir()
        tensors = {"scalar": torch.tensor(value, dtype=kind), "row": torch.tensor([1, value, 0], dtype=kind)}
        save_file(tensors, tmp_path / name / "a.safetensors")
    base, new = Tree(tmp_path / "base"), Tree(tmp_path / "new")
    found = {one.name: (one.what, one.size) for one in differences(base, new)}
    assert found == {
        "a.safetensors: row": ("1 of 3 numbers differ", 1.0),
        "a.safetensors: scalar": ("1 of 1 numbers differ", 1.0),
    }
    assert differences(base, base) == ()


def test_a_copied_tree_without_a_directory(trees: tuple[Tree, Tree]) -> None:
    shutil.rmtree(trees[1].root / "run")
    found = differences(*trees)
    assert len(found) == 3 and all(one.what == "only in base" for one in found)
