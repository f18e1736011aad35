"""`reward=toxicity` and `toxicity_holistic` in short runs: by a classifier, by a service that fails, by its record."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_toy import KEY, FakeService
from safetensors.torch import load_file
from script_runs import Running, rows, run_script, start_script
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.runtime.remote.cache import AnswerCache

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
    return [
        *by_any_scorer(smoke),
        f"reward={reward}",
        f"reward.components.toxicity.scorer.path={classifier}",
        "reward.components.toxicity.scorer.label=rude",
    ]


def by_any_scorer(smoke: Path) -> list[str]:
    prepared = smoke / "prepared"
    return [
        "train_ppo",
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
        "ppo.epochs=1",
        "processes.precision=fp32",
    ]


@pytest.mark.slow
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
    *notes, last = done.stderr.splitlines()
    assert last.startswith("error:") and not any("Traceback" in note or "error" in note for note in notes)
    assert not (tmp_path / "run").exists()


def by_service(smoke: Path, service: FakeService, cache: Path, output: Path) -> list[str]:
    remote = "reward.components.toxicity.scorer.remote"
    return [
        *by_any_scorer(smoke),
        "reward=toxicity",
        "text_scorer@reward.components.toxicity.scorer=perspective",
        f"{remote}.url={service.url}",
        f"{remote}.items_per_s=null",
        f"{remote}.backoff_s=0.001",
        f"{remote}.longest_wait_s=0.01",
        f"reward.components.toxicity.scorer.cache_file={cache}",
        "total_steps=3",
        "checkpoint_every=1",
        f"output_dir={output}",
    ]


@pytest.mark.slow
def test_a_run_that_is_killed_within_a_step_goes_on_as_if_nothing_had_been(smoke: Path, tmp_path: Path) -> None:
    """Weights and metrics are those of a run without faults; no text that was answered is asked about again."""
    key = {"PERSPECTIVE_API_KEY": KEY}
    with FakeService(key=KEY) as service:
        calm = run_script(*by_service(smoke, service, tmp_path / "calm.sqlite", tmp_path / "calm"), environment=key)
        assert calm.returncode == 0, calm.stderr
        once, running = dict(service.asked), list[Running]()
        service.asked.clear()
        begun = len(service.requests)

        def fault(number: int, body: dict[str, Any]) -> Any:
            if number - begun == 2 * len(once) // 3:
                running[0].send_signal(signal.SIGKILL)
            return (429,) if number % 5 == 0 else None

        service.fault = fault
        given = by_service(smoke, service, tmp_path / "killed.sqlite", tmp_path / "killed")
        running.append(start_script(*given, environment=key))
        assert running[0].wait().returncode == -signal.SIGKILL
        finished = run_script(*given, environment=key)
        assert finished.returncode == 0 and "resuming from" in finished.stderr, finished.stderr
        assert set(service.asked) == set(once) and sum(service.asked.values()) - len(once) <= 8  # under way at the kill
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert rows(tmp_path / "killed" / name) == rows(tmp_path / "calm" / name)
    last = "checkpoints/step_3/policy/model.safetensors"
    ours, theirs = (load_file(tmp_path / run / last) for run in ("killed", "calm"))
    assert theirs and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert not left and KEY not in calm.stderr + finished.stderr


@pytest.mark.slow
def test_what_was_said_before_makes_the_same_run_again_without_the_service(smoke: Path, tmp_path: Path) -> None:
    """With adapters; the second run without a key."""
    cache, adapters = tmp_path / "scores.sqlite", ["policy=lora", "total_steps=1"]
    with FakeService() as service:
        given = by_service(smoke, service, cache, tmp_path / "asked")
        open_to_all = "reward.components.toxicity.scorer.remote.key_variable=null"
        done = run_script(*given, *adapters, open_to_all)
        assert done.returncode == 0, done.stderr
        assert set(service.asked.values()) == {1}
        begun = len(service.requests)
        given = [key for key in given if ".remote." not in key and "=perspective" not in key]
        by_record = "text_scorer@reward.components.toxicity.scorer=recorded"
        given = [key.replace(str(tmp_path / "asked"), str(tmp_path / "recorded")) for key in given]
        done = run_script(*given, *adapters, by_record)
        assert done.returncode == 0, done.stderr
        assert len(service.requests) == begun
    assert rows(tmp_path / "recorded" / "metrics.jsonl") == rows(tmp_path / "asked" / "metrics.jsonl")


@pytest.mark.slow
def test_a_service_that_stays_away_ends_the_run_in_one_line_and_keeps_its_steps(smoke: Path, tmp_path: Path) -> None:
    with FakeService() as service:
        given = by_service(smoke, service, tmp_path / "scores.sqlite", tmp_path / "run")
        given += [f"reward.components.toxicity.scorer.remote.{key}" for key in ("key_variable=null", "budget_s=0.2")]
        done = run_script(*given, "total_steps=1")
        assert done.returncode == 0, done.stderr
        service.fault = lambda number, body: (503,)
        done = run_script(*given)
        errors = [line for line in done.stderr.splitlines() if "given up after" in line]
        assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
        service.fault = lambda number, body: None
        AnswerCache(tmp_path / "scores.sqlite", "another run").put("a text", 0.5)  # shares the file
        patient = "reward.components.toxicity.scorer.remote.budget_s=30"
        done = run_script(*given, patient)
        assert done.returncode == 0 and "resuming from" in done.stderr, done.stderr
    assert [row["step"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]
