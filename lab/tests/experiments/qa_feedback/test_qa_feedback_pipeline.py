"""Pipelines on real questions: where they write, and qa_feedback/smollm2 from the published files to its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from script_runs import ROOT, run_script

from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.launch.steps import expanded


def arguments_of(*overrides: str) -> dict[str, dict[str, str]]:
    """Of each reward model and judge of the pipeline, by its step and kind, its arguments."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        made = compose("run_experiment", ["pipeline=qa_feedback/smollm2", "seed=0", *overrides])
    steps = OmegaConf.to_container(made.steps, resolve=True)
    assert isinstance(steps, dict)
    asked = {name: steps[name] for name in ("reward_models", "judges")}
    of = [(step.name, dict(arg.split("=", 1) for arg in step.args)) for step in expanded(asked)]
    return {f"{name}/{args['reward_model']}": args for name, args in of}


def test_judges_can_be_of_another_encoder_and_count_nothing() -> None:
    """By themselves they are as the rewards are; rewards stay as they are."""
    model, counts, frozen = "model", "reward_model.counts", "reward_model.layers.frozen"
    plain = arguments_of()
    assert len(plain) == 7 and {args[model] for args in plain.values()} == {"models/minilm"}
    other = arguments_of(
        "settings.judge.encoder=models/mpnet", "settings.judge.counts=debias", "settings.judge.frozen=9"
    )
    for name, args in other.items():
        if name.startswith("judges"):
            assert (args[model], args[counts], args[frozen]) == ("models/mpnet", "debias", "9")
            assert args["data"].endswith("judge.json")
        else:
            assert args == plain[name] and counts not in args


def composed(*overrides: str) -> dict[str, Any]:
    """A pipeline of real questions, resolved."""
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        made = OmegaConf.to_container(compose("run_experiment", list(overrides)), resolve=True)
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


def test_seeds_folds_and_arms_of_expert_iteration_share_no_directory() -> None:
    """Only the arms of one seed and fold share what they start from; the table finds all of them."""
    made = {
        (seed, fold, arm): composed(
            "pipeline=qa_feedback/expert_iteration", f"seed={seed}", f"settings.held_out={fold}", f"settings.arm={arm}"
        )
        for seed in (0, 3)
        for fold in (1, 4)
        for arm in ("bottleneck", "chance")
    }
    assert len({one["output_dir"] for one in made.values()}) == 8
    assert len({one["settings"]["start"] for one in made.values()}) == 4
    for (seed, fold, arm), one in made.items():
        root = f"{one['collect']['directory']}/seed_{seed}/fold_{fold}"
        assert (one["output_dir"], one["settings"]["start"]) == (f"{root}/{arm}", f"{root}/start")
        assert one["steps"]["round_3"]["args"][0] == f"output_dir={root}/{arm}/round_3"


def test_systems_of_credit_differ_in_when_they_are_paid() -> None:
    made = composed("pipeline=qa_feedback/credit", "seed=2", "settings.held_out=1")
    assert (
        made["settings"]["start"]
        == composed("pipeline=qa_feedback/expert_iteration", "seed=2", "settings.held_out=1")["settings"]["start"]
    )
    assert list(made["steps"])[:2] == ["questions", "reward_model"]
    args = made["steps"]["trained"]["args"]
    assert {"reward.credit={credit}", "optimizer.lr={lr}", "ppo.kl.beta={beta}"} == {
        arg for arg in args if isinstance(arg, str) and arg.split("=")[-1].startswith("{")
    }
    assert made["collect"]["credits"] == made["steps"]["trained"]["each"]["credit"] == ["outcome", "end", "revised"]


def test_the_demo_on_real_questions_exports_its_last_weights() -> None:
    made = composed("pipeline=qa_feedback/demo_real", "seed=0")
    args = made["steps"]["distilled"]["args"]
    assert "validation_data=null" in args and not [arg for arg in args if str(arg).startswith("validat")][1:]
    assert made["collect"]["distilled"] == f"{made['output_dir']}/distilled"


@pytest.mark.slow
def test_a_policy_is_judged_by_models_that_it_was_not_optimised_for(tmp_path: Path, shared_data: Path) -> None:
    data, size = shared_data / "qa_feedback", "settings.budgets.cpu"
    made = run_script(
        "make_tiny_models",
        f"data=[{data / 'dev.json'}]",
        f"output_dir={tmp_path / 'models'}",
        "vocab_size=2000",
        "bert.num_layers=5",
        "bert.d_model=32",
        "bert.d_ff=64",
    )
    assert made.returncode == 0, made.stderr[-2000:]
    arguments = (
        "pipeline=qa_feedback/smollm2",
        f"output_dir={tmp_path / 'out'}",
        f"settings.prompts={data / 'dev.json'}",
        f"settings.feedback={data / 'dev_feedback.json'}",
        f"settings.policy={tmp_path / 'models/llama'}",
        f"settings.encoder={tmp_path / 'models/bert'}",
        "settings.threads=1",
        f"collect.output={tmp_path / 'table.json'}",
        *(f"{size}.{key}" for key in ("steps=2", "sft_steps=2", "validations=2", "best_of=2", "max_new_tokens=12")),
    )
    done = run_script("run_experiment", *arguments, timeout=900.0)
    assert done.returncode == 0, done.stderr[-3000:]
    root, found = tmp_path / "out" / "seed_0", read_json(tmp_path / "table.json")
    assert found["split"] == {"train": 291, "dev": 31, "test": 78, "optimised": 160, "judge": 160}
    assert len(read_jsonl(root / "evaluation/best_of_judge.questions.jsonl")) == 78
    score = "reward/completeness/mean_score"
    own, judge = (read_json(root / f"evaluation/sft{end}.json")[score] for end in ("", "_judge"))
    assert own != judge  # two sets of reward models
    assert read_json(root / "forecast.json")["step_s"] > 0
    assert [row["step"] for row in read_jsonl(root / "fine_grained_rlhf/metrics.jsonl")] == [1, 2]
    again = run_script("run_experiment", *arguments, timeout=400.0)
    assert again.returncode == 0, again.stderr[-3000:]
    assert read_json(tmp_path / "table.json")["rows"] == found["rows"]
