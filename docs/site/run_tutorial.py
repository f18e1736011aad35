"""Execute the tutorial in an empty directory and write what it prints into it.

Example: python docs/site/run_tutorial.py        (rewrites docs/tutorial.ipynb)

What differs between two executions beyond the numbers (times, warnings on standard error) is not kept.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

TUTORIAL = Path(__file__).resolve().parents[1] / "tutorial.ipynb"
_TIMEOUT = 300
"""Of one cell, in seconds."""


def execute(notebook: Any) -> Any:
    """A copy of a notebook with the outputs of this machine.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; says which and how.
    """
    fresh = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as directory:
        NotebookClient(
            fresh, timeout=_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": directory}}
        ).execute()
    for cell in fresh.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    fresh.metadata["language_info"] = {"name": "python"}
    return fresh


if __name__ == "__main__":
    nbformat.write(execute(nbformat.read(TUTORIAL, as_version=4)), TUTORIAL)
    print(TUTORIAL.name, file=sys.stderr)
