"""Five strangers' data, from their files to a reward model and a policy, by what `finegrained init` writes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from five_strangers import STRANGERS, tiny_models
from script_runs import run_script

from finegrained_rlhf.core.files import read_json, read_jsonl


def run(line: str, *more: str, cwd: Path) -> str:
    """Run a command as a page has it; what it printed."""
    name, *arguments = shlex.split(line)[1:]
    done = run_script(name.replace("-", "_"), *arguments, *more, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_strangers_data_reaches_a_policy(tmp_path: Path, stranger: str) -> None:
    tiny_models(tmp_path)
    data = STRANGERS[stranger](tmp_path)
    made = "finegrained init name=mine reward=marks model=models/longformer policy=models/llama"
    printed = run(made, f"data={data.name}", cwd=tmp_path)
    assert "my_reward_model: 400 steps of" in printed and "on this machine" in printed
    tried = run("finegrained try mine", cwd=tmp_path)
    assert tried.splitlines()[-1] == "nothing is wrong"
    page = (tmp_path / "mine/README.md").read_text(encoding="utf-8")
    train, ppo, report = page.partition("```bash\n")[2].partition("```")[0].splitlines()
    run(train, cwd=tmp_path)
    dev = read_json(next((tmp_path / "mine/runs").iterdir()) / "metrics.json")["dev"]
    share = dev.get("share_has_error", 0.5)  # of pairs, either may be the better one
    assert dev["accuracy"] > max(share, 1 - share)
    run(ppo, "total_steps=6", "validate_every=6", cwd=tmp_path)
    steps = read_jsonl(tmp_path / "mine/runs/ppo/metrics.jsonl")
    assert len(steps) == 6 and abs(steps[0]["kl"]) < 1e-4 < abs(steps[-1]["kl"])  # the sampled KL has either sign
    run(report, cwd=tmp_path)
