"""Runs in the web application: seconds until pages of long runs are answered.

Examples:
    python benchmarks/web_runs.py out=benchmarks/results/web_runs.json
    python benchmarks/web_runs.py runs=2 steps=200 out=small.json

Every run has the metrics that PPO with three components writes, drawn at random (one file, copied), and a validation
every hundredth of its steps. Asked are the table, one run and all runs side by side, each by an application that has
read nothing yet, and then again. Timed is the answer in the server's process, without a socket and a browser; imports
and templates are there already, by a small run that was shown before.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from starlette.testclient import TestClient

from benchmarks.command import read_arguments, run_main
from benchmarks.retrieval import timed
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.runtime.directory.provenance import nameless_hardware
from finegrained_rlhf.web.application import Settings, create_app

KEYS = ("out", "runs", "steps")
MOST = 12  # runs that are shown side by side
COMPONENTS = ("relevance", "factuality", "completeness")
KINDS = ("reward/{}/raw", "reward/{}/weighted", "reward/{}/spread", "reward/{}/weight", "segments/{}", "satisfied/{}")
PHASES = ("rollout", "rewards", "scoring", "update", "total")
OTHERS = (
    *("episodes", "kl", "beta", "entropy", "lr", "loss/policy", "loss/value", "ratio", "gradient_norm", "logprob_gap"),
    *("clip_fraction/policy", "clip_fraction/value", "log_ratio", "return", "value", "reward/total", "response_length"),
    *("eos_rate", "repetition", "alignment", "truncated", "groups/same_reward", "effective_sample_size"),
    *("explained_variance", "time/step_s", "time/processor_s"),
)
NAMES = (
    *(kind.format(name) for kind in KINDS for name in COMPONENTS),
    *(f"time/{phase}_{what}" for phase in PHASES for what in ("s", "tokens_per_s")),
    *OTHERS,
)


def write_runs(directory: Path, runs: int, steps: int) -> int:
    """Runs `run_0`, `run_1`, … below a directory; returns the bytes of the metrics of each."""
    draw = random.Random(0).random
    first = directory / "run_0"
    components = {name: {"_target_": "reward_models.SegmentScorer", "path": name} for name in COMPONENTS}
    reward = {"components": components, "weights": dict.fromkeys(COMPONENTS, 0.5), "settings": {}}
    config = {"output_dir": "outputs/run", "seed": 0, "total_steps": steps, "reward": reward}
    write_json(first / "config.yaml", config)  # JSON is YAML
    write_json(first / "run.json", {"step": steps, "total_steps": steps})
    write_jsonl(first / "metrics.jsonl", ({"step": n, **{k: draw() for k in NAMES}} for n in range(1, steps + 1)))
    validated = range(0, steps + 1, max(steps // 100, 1))
    write_jsonl(first / "eval.jsonl", [{"step": n, "score": draw(), "reward/total": draw()} for n in validated])
    for number in range(1, runs):
        shutil.copytree(first, directory / f"run_{number}")
    return (first / "metrics.jsonl").stat().st_size


def opened(directory: Path, runs: int) -> dict[str, dict[str, float]]:
    """Wall and processor seconds of each page, the first time and again."""
    together = "&".join(f"run=run_{number}" for number in range(min(runs, MOST)))
    pages = {"table": "/runs", "run": "/runs/run?name=run_0", "side_by_side": f"/runs/compare?{together}"}
    found = {}
    for name, path in pages.items():
        with TestClient(create_app(Settings(directory)), base_url="http://localhost:8700") as client:
            asked = partial(client.get, path)
            for times in ("first", "again"):
                wall, processor = timed(asked)
                found[f"{name}_{times}"] = {"seconds": wall, "processor_seconds": processor}
            assert asked().status_code == 200
    return found


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Make runs, ask for pages, print, write."""
    given = read_arguments(arguments, KEYS)
    runs, steps = int(given.get("runs", 10)), int(given.get("steps", 10_000))
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder).resolve() / "small", Path(folder).resolve() / "large"
        write_runs(small, 2, 10)
        opened(small, 2)
        size = write_runs(large, runs, steps)
        result: dict[str, Any] = {
            "runs": runs,
            "steps": steps,
            "metrics_bytes_a_run": size,
            "pages": opened(large, runs),
            "hardware": nameless_hardware(),
        }
    for page, spent in result["pages"].items():
        print(f"{page}: {spent['seconds']:.2f} s, {spent['processor_seconds']:.2f} s of one processor")
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
