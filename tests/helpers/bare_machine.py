"""A program of the project where packages are missing: their imports fail, as on a machine that does not have them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
_ABSENT = "hydra omegaconf spacy datasets wandb evaluate peft nltk rouge_score matplotlib sacrebleu faiss"


def run_on_a_bare_machine(module: str, arguments: Sequence[str], cwd: Path) -> str:
    """What `benchmarks.MODULE.main(arguments)` prints where every optional package is missing."""
    program = (
        "import builtins, importlib, sys\n"
        f"real, absent, sys.argv = builtins.__import__, set({_ABSENT.split()}), ['{module}.py']\n"
        "def guard(name, *rest, **more):\n"
        "    if name.split('.')[0] in absent: raise ImportError(name)\n"
        "    return real(name, *rest, **more)\n"
        "builtins.__import__ = guard\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        f"importlib.import_module('benchmarks.{module}').main({list(arguments)})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
