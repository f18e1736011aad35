"""Our dense rewards in TRL's own trainer (`make test-trl`), in the environment of `make env-trl`, on the CPU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from letters_toy import LetterScorer
from ppo_toy import LengthScorer, make_trainer
from rl_toy import model, policy, tokenizer
from safetensors.torch import load_file
from servers import free_port
from trl_toy import ALGORITHMS, EPS, LONGEST, LR, SAMPLES, reward, trainer, weights

from finegrained_rlhf.bridges.trl import FineGrainedGRPOTrainer
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.report import Report
from finegrained_rlhf.report.runs.record import read_run
from finegrained_rlhf.rewards import ComponentConfig, RewardConfig, WeightSchedule
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.training.ppo import GAE
from finegrained_rlhf.training.ppo.config import KLConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/bridges.md"
Steps = list[list[list[Any]]]


def ours(path: Path, algorithm: str, **ppo: Any) -> tuple[Steps, dict[str, torch.Tensor]]:
    """Three steps of our own trainer: its responses, and the policy's parameters afterwards."""
    owner = policy("llama")
    made = make_trainer(
        path,
        "llama",
        owner=owner,
        prompts_per_step=2,
        samples=SAMPLES,
        max_new_tokens=LONGEST,
        lr=LR,
        algorithm=ALGORITHMS[algorithm],
        scorers={"words": LetterScorer(), "length": LengthScorer()},
        kl=KLConfig(place="loss", estimator="k3", beta=0.05, limit=None),
        **{"epochs": 1, **ppo},
    )
    assert made.optimizer is not None and OptimizerConfig(eps=EPS).betas == (0.9, 0.999)
    steps: Steps = []
    draw = made.draws.rollout

    def record(step: int) -> Any:
        drawn = draw(step)
        lengths = drawn.lengths().tolist()
        ids = [row[:n] for row, n in zip(drawn.response_ids.tolist(), lengths, strict=True)]
        steps.append([[prompt.text, row] for prompt, row in zip(drawn.row_prompts(), ids, strict=True)])
        return drawn

    made.draws.rollout = record
    for step in (1, 2, 3):
        made.train_step(step)
    return steps, weights(owner.model)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Steps, dict[str, torch.Tensor]]:
    return ours(tmp_path_factory.mktemp("ours"), "gdpo_by_segment")


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], atol: float = 1e-4) -> None:
    before = weights(model("llama"))
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        torch.testing.assert_close(
            found[name], parameter, atol=atol, rtol=0, msg=lambda said, name=name: f"{name}: {said}"
        )
    moved = max(float((expected[name] - before[name]).abs().max()) for name in expected)
    assert moved > 2e-3  # so that 1e-4 says something


# Parity --------------------------------------------------------------------------------------------------------------


def test_three_steps_in_trl_are_ours(recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    steps, expected = recorded
    made = trainer(tmp_path / "run", steps)
    made.train()
    same(weights(made.model), expected)
    check_run(tmp_path / "run", steps)


def check_run(path: Path, steps: Steps) -> None:
    """The run as our tools read it."""
    run = read_run(path)
    assert [row["step"] for row in run.steps] == [1, 2, 3] == list(run.samples)
    assert run.components == ["words", "length"]
    assert all(
        {"reward/total", "reward/words/raw", "lr", "trl/loss", "trl/kl", "gradient_norm"} <= row.keys()
        for row in run.steps
    )
    for step, rows in zip((1, 2, 3), steps, strict=True):
        kept = run.samples[step]
        assert [sample.prompt for sample in kept] == [prompt for prompt, _ in rows]
        assert [sample.sample for sample in kept] == [*range(SAMPLES)] * 2
        for sample, (_, ids) in zip(kept, rows, strict=True):
            shares = sample.tokens.shares
            assert len(sample.tokens.ends) == len(ids) and {"words", "length"} <= shares.keys()
            added = [sum(column) for column in zip(*shares.values(), strict=True)]
            assert added == pytest.approx(sample.tokens.numbers["advantage"], abs=1e-4)
    assert any(len(set(sample.tokens.numbers["advantage"])) > 1 for sample in kept)  # dense
    assert read_json(path / "run.json")["status"] == "ended"
    Report(str(path)).run()
    page = (path / "report.html").read_text(encoding="utf-8")
    assert "words" in page and steps[0][0][0] in page


@pytest.mark.parametrize("algorithm", ["returns", "gdpo_by_segment"])
def test_two_updates_a_batch(algorithm: str, tmp_path: Path) -> None:
    steps, expected = ours(tmp_path / "ours", algorithm, epochs=2)
    made = trainer(tmp_path / "run", steps, algorithm=algorithm, num_iterations=2, max_steps=6)
    made.train()
    same(weights(made.model), expected)
    assert [row["step"] for row in read_jsonl(tmp_path / "run/metrics.jsonl")] == [1, 3, 5]


# Several processes ---------------------------------------------------------------------------------------------------


def launched(directory: Path, steps: Steps, flags: list[str], cpu: str = "true", **given: Any) -> tuple[int, str]:
    directory.mkdir(exist_ok=True)
    model("llama").save_pretrained(directory / "run_model")
    (directory / "task.json").write_text(json.dumps({"steps": steps, "given": given}), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    ]
    command += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", str(free_port()), *flags]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": cpu}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    script = str(ROOT / "tests/helpers/trl_toy.py")
    done = subprocess.run(
        [*command, script, str(directory)], env=environment, capture_output=True, text=True, timeout=900
    )
    return done.returncode, done.stdout + done.stderr


def test_two_processes_do_what_one_does(recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    steps, expected = recorded
    code, said = launched(tmp_path, steps, ["--multi_gpu"], per_device_train_batch_size=4)
    assert code == 0, said[-3000:]
    same(load_file(tmp_path / "weights.safetensors"), expected)
    check_run(tmp_path / "run", steps)


def test_a_group_on_two_processes(tmp_path: Path) -> None:
    """Three prompts of two responses, three rows a process: the second prompt has one on each."""
    asked = ["red", "red", "one dog", "one dog", "who saw it? blue green", "who saw it? blue green"]
    rows = [[list(row) for row in zip(asked, [[5, 6, 2], [7, 2], [8, 9], [10], [5], [6, 7, 8]], strict=True)]]
    given = {"num_generations": 2, "max_steps": 1}
    one = trainer(tmp_path / "one", rows, per_device_train_batch_size=6, **given)
    one.train()
    code, said = launched(tmp_path / "two", rows, ["--multi_gpu"], per_device_train_batch_size=3, **given)
    assert code == 0, said[-3000:]
    two = load_file(tmp_path / "two/weights.safetensors")
    for name, parameter in weights(one.model).items():
        torch.testing.assert_close(two[name], parameter, atol=1e-5, rtol=0)


def test_accelerate_shards_nothing_on_a_cpu(recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    """Asked for FSDP2, accelerate 1.15 goes on with plain data parallelism: it turns FSDP on for accelerators alone."""
    steps, expected = recorded
    flags = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]
    flags += ["--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer", "--fsdp_state_dict_type", "FULL_STATE_DICT"]
    code, said = launched(tmp_path, steps, flags, per_device_train_batch_size=4)
    assert code == 0, said[-3000:]
    assert (tmp_path / "type").read_text() == "MULTI_CPU"
    same(load_file(tmp_path / "weights.safetensors"), expected)


@pytest.mark.parametrize("stage", ["2", "3"])
def test_deepspeed_shards_over_gloo(
    recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path, stage: str
) -> None:
    """It must not be told that there is a CPU alone: accelerate 1.15 then leaves DeepSpeed away, too."""
    pytest.importorskip("deepspeed")
    steps, expected = recorded
    flags = ["--use_deepspeed", "--zero_stage", stage, "--zero3_save_16bit_model", "true"]
    given: dict[str, Any] = {"use_cpu": False, "ddp_backend": "gloo", "per_device_train_batch_size": 4}
    code, said = launched(tmp_path, steps, [*flags, "--gradient_accumulation_steps", "1"], cpu="false", **given)
    assert code == 0, said[-3000:]
    assert (tmp_path / "type").read_text() == "DEEPSPEED"
    same(load_file(tmp_path / "weights.safetensors"), expected)
    check_run(tmp_path / "run", steps)


# Adapters, continuing, evaluation, what moves -------------------------------------------------------------------------


def test_adapters_alone_are_trained(recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    steps, _ = recorded
    made = trainer(tmp_path / "run", steps, peft={"r": 4, "target_modules": ["q_proj", "v_proj"]})
    before = weights(made.model)
    made.train()
    after = weights(made.model)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all("lora_" in name for name in moved)
    check_run(tmp_path / "run", steps)


def test_a_run_goes_on_where_it_was_saved(recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    """A schedule, running moments and the metrics with it."""
    steps, _ = recorded
    moving = reward(
        schedule={"length": WeightSchedule((1, 3), (0.0, 1.0))},
        settings={"words": ComponentConfig(normalisation="running")},
    )
    whole = trainer(tmp_path / "whole", steps, reward=moving, save_strategy="steps", save_steps=2)
    whole.train()
    assert [row["reward/length/weight"] for row in read_jsonl(tmp_path / "whole/metrics.jsonl")] != [0.5] * 3
    again = trainer(tmp_path / "whole", steps[2:], reward=moving, save_strategy="no")
    again.train_dataset = whole.train_dataset
    with contextlib.suppress(FileNotFoundError):
        os.remove(tmp_path / "whole/run.json")
    again.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-2"))
    same_weights = weights(again.model)
    for name, parameter in weights(whole.model).items():
        torch.testing.assert_close(same_weights[name], parameter, atol=1e-6, rtol=0)
    assert [row["step"] for row in read_jsonl(tmp_path / "whole/metrics.jsonl")] == [1, 2, 3]


def test_evaluation_is_a_validation_of_our_run(tmp_path: Path) -> None:
    """TRL draws by itself here."""
    made = trainer(tmp_path / "run", None, max_steps=1, per_device_eval_batch_size=4)
    made.train()
    measured = made.evaluate(made.train_dataset.from_dict({"prompt": ["red", "one dog"]}))
    assert measured["eval_loss"] >= 0
    row = read_jsonl(tmp_path / "run/eval.jsonl")[0]
    assert row["step"] == 1 and row["examples"] == 8
    assert row["score"] == pytest.approx(row["reward/words/weighted"] + row["reward/length/weighted"], abs=1e-6)
    assert len(read_jsonl(tmp_path / "run/samples/validation_step_1.jsonl")) == 4


def test_a_response_without_a_score_teaches_nothing(
    recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path
) -> None:
    steps, _ = recorded

    class Odd(LetterScorer):
        """Has no score of the first response."""

        def score(self, prompts: Any, responses: Any) -> Any:
            found = super().score(prompts, responses)
            spans, values = list(found.spans), list(found.values)
            spans[0] = values[0] = ()
            return type(found)(spans, values, unscored=frozenset({0}))

    odd = RewardConfig({"words": Odd()}, {"words": 1.0})
    made = trainer(tmp_path / "run", steps, reward=odd, max_steps=1, algorithm="returns")
    given: list[Any] = []
    compute = made._compute_loss
    made._compute_loss = lambda model, inputs: given.append(inputs["advantages"]) or compute(model, inputs)
    made.train()
    kept = read_run(tmp_path / "run").samples[1]
    assert kept[0].unscored == ("words",) and not any(kept[0].tokens.numbers["advantage"])
    assert given[0].shape[0] == 8 and any(not row.any() for row in given[0])


# Refusals, and the page ----------------------------------------------------------------------------------------------


def test_what_cannot_be_is_one_error(recorded: tuple[Steps, dict[str, torch.Tensor]], tmp_path: Path) -> None:
    steps, _ = recorded
    with pytest.raises(ConfigError, match="reward_weights: the weights are those of `reward`"):
        trainer(tmp_path / "a", steps, reward_weights=[1.0, 2.0])
    with pytest.raises(ConfigError, match="GAE learns a value model, which only our trainer has"):
        ALGORITHMS["gae"] = GAE()  # type: ignore[assignment]
        trainer(tmp_path / "b", steps, algorithm="gae")
    del ALGORITHMS["gae"]
    with pytest.raises(ConfigError, match="tools: the reward"):
        FineGrainedGRPOTrainer(model("llama"), reward(), None, tools=[len])
    (tmp_path / "c").mkdir()
    (tmp_path / "c/metrics.jsonl").write_text('{"step": 9}\n')
    with pytest.raises(ConfigError, match="holds a run already; name another directory"):
        trainer(tmp_path / "c", steps).train()
    assert (tmp_path / "c/metrics.jsonl").read_text() == '{"step": 9}\n'


def test_another_version_is_one_error() -> None:
    code = "import trl; trl.__version__ = '2.0.0'; import finegrained_rlhf.bridges.trl"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "ConfigError: TRL 2.0.0 was not tried" in done.stderr and "expected 1.16" in done.stderr


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (example,) = [block for block in blocks if "bridges.trl" in block]
    assert len(example.splitlines()) <= 14
    monkeypatch.chdir(tmp_path)
    model("llama").save_pretrained("policy")
    tokenizer("llama").save_pretrained("policy")
    Path("prompts.jsonl").write_text('{"prompt": "red"}\n{"prompt": "one dog"}\n' * 8)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(blocks[0] + "\n" + example, PAGE.name, "exec"), names)
    run = read_run("runs/trl")
    assert run.components == ["polite", "brief"] and len(run.steps) >= 2 and run.samples
