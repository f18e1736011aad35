"""The shortest real runs of `finegrained evaluate-reward-model`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from script_runs import run_in_two_processes, run_script

from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.factworld.annotate import AnnotateFactWorld
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples

pytestmark = pytest.mark.scripts


@pytest.fixture(scope="module")
def run(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a PPO run with random reward models, and the oracle's feedback on its world."""
    output = tmp_path_factory.mktemp("trust") / "run"
    shutil.copytree(smoke, output)
    examples = read_examples(output / "prepared" / "world" / "sft_train.json")
    answers = [example.references[0] for example in examples]
    records = [OutputRecord.of(e, (answers[i], answers[i - 1], answers[i - 2], "No.")) for i, e in enumerate(examples)]
    write_outputs(output.parent / "outputs.jsonl", records)
    AnnotateFactWorld(str(output.parent / "outputs.jsonl"), str(output.parent / "feedback.json"), noise=0.0).run()
    return output


def test_trust_in_one_process_and_in_two(run: Path, tmp_path: Path) -> None:
    kind, feedback = "factuality", run.parent / "feedback.json"
    model = run / "prepared" / "reward_models" / kind
    for name, start in (("one", run_script), ("two", run_in_two_processes)):
        args = (f"path={model}", f"data={feedback}", f"output={tmp_path / name}.json", "batch_size=3")
        finished = start("evaluate_reward_model", *args)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.count(f"{kind}: ") == 1 and "| 0.90–" in finished.stdout
    one, two = read_json(tmp_path / "one.json"), read_json(tmp_path / "two.json")
    assert one["reward_model"] == kind and one["items"] > 10 and len(one["calibration"]["bins"]) == 10
    assert one["calibration"].pop("ece") == pytest.approx(two["calibration"].pop("ece"), abs=1e-5)
    for ours, theirs in zip(one.pop("calibration")["bins"], two.pop("calibration")["bins"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert one == two
