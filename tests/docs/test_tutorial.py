"""The tutorial runs as committed, and what is committed is what it prints: the same outputs of the same kinds."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import nbformat
import pytest
from script_runs import PRELOADED_PYTHON, ROOT, fork_server

from finegrained_rlhf.core.files import write_json

TUTORIAL = ROOT / "docs/tutorial.ipynb"


def site_tool(name: str) -> Any:
    """A module of docs/site."""
    spec = spec_from_file_location(f"docs_site_{name}", ROOT / f"docs/site/{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def committed() -> Any:
    notebook = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(notebook)
    return notebook


def kinds(notebook: Any) -> list[tuple[str, str, list[tuple[str, tuple[str, ...]]]]]:
    """Of each cell: its kind, its source, and the kinds of its outputs (a stream may come in parts)."""
    found = []
    for cell in notebook.cells:
        outputs: list[tuple[str, tuple[str, ...]]] = []
        for output in cell.get("outputs", ()):
            kind = (output.output_type, (output.name,) if "name" in output else tuple(sorted(output.data)))
            if output.output_type != "stream" or kind not in outputs:
                outputs.append(kind)
        found.append((cell.cell_type, cell.source, outputs))
    return found


def text_of(notebook: Any) -> str:
    """All that a notebook prints on standard output."""
    return "".join(
        output.text for cell in notebook.cells for output in cell.get("outputs", ()) if output.output_type == "stream"
    )


def with_fewer_steps(notebook: Any) -> Any:
    """The tutorial with a twentieth of the training steps of its reward models; the rest as it stands."""
    fewer = nbformat.from_dict(notebook)
    (cell,) = [cell for cell in fewer.cells if "TrainRewardModel(" in cell.source and cell.cell_type == "code"]
    steps = r'("(?:relevance|factuality|completeness)", \d+),'
    cell.source, changed = re.subn(steps, r"\1 // 20,", cell.source)
    assert changed == 3
    return fewer


@pytest.mark.scripts
@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_the_tutorial_runs_and_prints_what_is_committed(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork_server()
    kernel = {"argv": [str(PRELOADED_PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"]}
    write_json(tmp_path / "kernels/python3/kernel.json", {**kernel, "display_name": "Python", "language": "python"})
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    given = committed() if whole else with_fewer_steps(committed())
    fresh = site_tool("run_tutorial").execute(given)
    assert kinds(fresh) == kinds(given), "run: python docs/site/run_tutorial.py"
    before_training = "relevance: best at step"  # numbers behind it depend on the machine's rounding
    printed, kept = (text_of(notebook).partition(before_training)[0] for notebook in (fresh, committed()))
    assert printed == kept
    assert "4 steps; exported: the policy of step" in text_of(fresh)


def test_the_committed_outputs_are_whole_and_name_no_machine() -> None:
    code = [cell for cell in committed().cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error" or o.get("name") == "stderr"]
    text = TUTORIAL.read_text(encoding="utf-8")
    assert not re.search(r"/(?:home|root|tmp|work|Users|var|opt)/", text)
    assert TUTORIAL.stat().st_size < 100_000


def test_what_the_text_says_of_the_numbers_is_true_of_them() -> None:
    printed = text_of(committed())
    errors, right, _ = map(int, re.search(r"relevance +\d+ segments: (\d+).*?(\d+) without, (\d+)", printed).groups())
    accuracy = float(re.search(r"relevance: best at step \d+, dev accuracy ([\d.]+)", printed).group(1))
    assert accuracy > right / (errors + right)  # better than the more frequent label
    assert float(re.search(r"completeness: best at step \d+, dev accuracy ([\d.]+)", printed).group(1)) > 0.9
    assert re.search(r"Wrong-Grounding: '", printed) and re.search(r"Irrelevant: 'and ", printed)
    page = "".join(str(o.get("data", {}).get("text/html", "")) for c in committed().cells for o in c.get("outputs", ()))
    assert "Did it get better?" in page and "<mark" in page


def test_links_of_the_tutorial_lead_somewhere() -> None:
    text = "\n".join(cell.source for cell in committed().cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)\s#]+)[^)]*\)", text)
    assert len(links) > 5
    assert [link for link in links if not (Path(TUTORIAL).parent / link).resolve().is_file()] == []
