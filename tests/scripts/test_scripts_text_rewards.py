"""`reward=toxicity` and its holistic counterpart in short runs, with a classifier that anyone could have made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from script_runs import run_script
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finegrained_rlhf.core.files import read_jsonl

pytestmark = pytest.mark.scripts


@pytest.fixture(scope="module")
def classifier(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder, folder = smoke / "prepared" / "models" / "longformer", tmp_path_factory.mktemp("classifier")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(
            encoder, id2label={0: "mild", 1: "rude"}, problem_type="single_label_classification"
        )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder).save_pretrained(folder)
    return folder


def command(smoke: Path, classifier: Path, reward: str) -> list[str]:
    prepared = smoke / "prepared"
    return [
        "train_ppo",
        f"reward={reward}",
        f"reward.components.toxicity.scorer.path={classifier}",
        "reward.components.toxicity.scorer.label=rude",
        f"data={prepared}/world/train.json",
        f"validation_data={prepared}/world/dev.json",
        f"policy.path={prepared}/models/t5",
        f"value.path={prepared}/models/t5",
        "total_steps=1",
        "validate_every=1",
        "rollout.prompts_per_step=4",
        "rollout.samples_per_prompt=2",
        "rollout.max_new_tokens=24",
        "max_prompt_tokens=256",
        "processes.precision=fp32",
    ]


def test_sentence_rewards_of_a_run_add_up_to_the_holistic_ones_less_1(
    smoke: Path, classifier: Path, tmp_path: Path
) -> None:
    """The same policy, seed and responses: before the first update the two runs differ in the reward alone."""
    totals = []
    for reward in ("toxicity", "toxicity_holistic"):
        done = run_script(*command(smoke, classifier, reward), f"output_dir={tmp_path}/{reward}")
        assert done.returncode == 0, done.stderr
        assert "100.00%" in done.stderr  # alignment
        row = read_jsonl(tmp_path / reward / "metrics.jsonl")[0]
        totals.append(row["reward/total"])
    assert -1 < totals[0] < 0 < totals[1] < 1
    assert totals[0] == pytest.approx(totals[1] - 1, abs=1e-5)


def test_a_label_that_the_classifier_lacks_ends_the_run_before_anything_is_made(
    smoke: Path, classifier: Path, tmp_path: Path
) -> None:
    given = command(smoke, classifier, "toxicity")
    done = run_script(*given, "reward.components.toxicity.scorer.label=toxic", f"output_dir={tmp_path}/run")
    assert done.returncode == 2 and "no label 'toxic'; id2label has mild, rude" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "run").exists()
