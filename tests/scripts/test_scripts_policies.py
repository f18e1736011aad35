"""Policies and algorithms of today by script, several options in one run: two processes, a kill, the doctor.

Slow, all of them. What each option does by itself is tested in process (docs/testing.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from reward_model_samples import cue_records, save_llama
from safetensors.torch import load_file
from script_runs import (
    PRELOADED_PYTHON,
    lines_in,
    rows,
    run_again_after_a_kill,
    run_in_two_processes,
    run_script,
)
from seq2seq_toy import seq2seq_config
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.feedback.reading import write_feedback

pytestmark = [pytest.mark.scripts, pytest.mark.slow]

STEPS, EVERY = 4, 2
"""Training steps of a run, and those between two checkpoints."""
TEMPLATE = (
    "{% set names = {'system': ' context: ', 'user': ' question: ', 'assistant': ' answer: '} %}"
    "{% for message in messages %}{{ names[message.role] + message.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' answer: ' }}{% endif %}"
)
"""Of words that the tiny tokenizers know."""
GROUPS = ("components", "weights", "settings", "schedule", "gates", "constraints")


@dataclass(frozen=True)
class World:
    """What `experiment=smoke` made, and a directory for what a configuration needs beside it.

    Attributes:
        prepared: its world and models.
        keys: arguments that point to them.
        own: an empty directory.
    """

    prepared: Path
    keys: list[str]
    own: Path

    def with_model(self, path: Path) -> list[str]:
        """The keys with another policy, which is the value model too."""
        others = [key for key in self.keys if not key.startswith(("policy.", "value."))]
        return [*others, f"policy.path={path}", f"value.path={path}"]


def t5_by_gdpo(world: World) -> list[str]:
    """Dense, by component; weights that move by step and by a dual variable, which a checkpoint must keep."""
    moving = ["reward.schedule.factuality.steps=[1,4]", "reward.schedule.factuality.weights=[0.5,0.9]"]
    constraint = ["reward.constraints.relevance.at_least=0.9", "reward.constraints.relevance.rate=0.5"]
    return [*world.keys, "algorithm=gdpo", "algorithm.credit=returns", *moving, *constraint]


def llama_by_rloo(world: World) -> list[str]:
    """Dense; drawn by continuous batching, and weighed against the sampler."""
    drawn = ["rollout.engine=continuous", "rollout.logprobs=update", "rollout.importance_cap=2"]
    words = ["algorithm=rloo", "algorithm.credit=returns", *drawn]
    return ["policy=tiny_llama", *world.with_model(world.prepared / "models/llama"), *words]


def llama_chats_by_grpo(world: World) -> list[str]:
    """Process supervision; conversations without passages, LoRA over frozen weights in bf16."""
    (world.own / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    for name in ("train", "dev"):
        said = []
        for number, record in enumerate(read_json(world.prepared / f"world/{name}.json")):
            turns = [("user", record["question"]), ("assistant", record["answer"][0])]
            before = (
                [("user", "What are the job and the city?"), ("assistant", "The job is singer.")] if number % 2 else []
            )
            messages = [{"role": role, "content": text} for role, text in (*before, *turns)]
            said.append({"id": record["id"], "messages": messages})
        write_jsonl(world.own / f"{name}.jsonl", said)
    unread = ("data=", "validation_data=", "reward.components.factuality", "reward.components.completeness")
    keys = [key for key in world.with_model(world.prepared / "models/llama") if not key.startswith(unread)]
    data = [f"data={world.own}/train.jsonl", f"validation_data={world.own}/dev.jsonl"]
    reward = [f"~reward.{group}.{name}" for group in GROUPS for name in ("factuality", "completeness")]
    chat = ["policy=lora", f"prompt.chat_template={world.own}/chat.jinja", "prompt.system=The color is pink."]
    frozen = ["policy.frozen_dtype=bfloat16", "processes.precision=bf16", "optimizer.lr=1e-2"]
    alone = ["rollout.prompts_per_batch=1", "ppo.micro_batch_prompts=1"]  # in bf16 a batch's size changes its rounding
    alone += ["rollout.samples_per_prompt=4"]  # two would be paid alike in most steps
    return [*keys, *data, *reward, *chat, *frozen, *alone, "algorithm=grpo", "algorithm.credit=process"]


def bart_by_ppo(world: World) -> list[str]:
    """An encoder–decoder beside T5, with a value model of its family; a head a component."""
    words = AutoTokenizer.from_pretrained(world.prepared / "models/t5")
    torch.manual_seed(0)
    config = seq2seq_config("bart", size=len(words), max_position_embeddings=256, init_std=0.3)
    model = AutoModelForSeq2SeqLM.from_config(config)
    model.generation_config.forced_bos_token_id = words.bos_token_id
    for saved in (model, words):
        saved.save_pretrained(world.own / "bart")
    return [*world.with_model(world.own / "bart"), "algorithm.per_component=true"]


@dataclass(frozen=True)
class Case:
    """A configuration and a run of it that nothing disturbed.

    Attributes:
        words: behind `train_ppo`, without the directory.
        whole: the run.
    """

    words: list[str]
    whole: Path

    def command(self, output: Path) -> list[str]:
        """A command line of `train_ppo` without its first word."""
        return [*self.words, f"output_dir={output}"]


@pytest.fixture(scope="module", params=[t5_by_gdpo, llama_by_rloo, llama_chats_by_grpo, bart_by_ppo])
def case(
    request: pytest.FixtureRequest, smoke: Path, smoke_keys: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    make: Callable[[World], list[str]] = request.param
    path = tmp_path_factory.mktemp(make.__name__)
    (path / "own").mkdir()
    words = make(World(smoke / "prepared", smoke_keys, path / "own"))
    common = [f"total_steps={STEPS}", f"checkpoint_every={EVERY}", "validate_every=2"]
    made = Case(["experiment=smoke", *words, *common], path / "whole")
    done = run_script("train_ppo", *made.command(made.whole))
    assert done.returncode == 0, done.stderr
    yield made


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    """What a checkpoint holds of the policy: its weights and, with LoRA, the adapter."""
    policy = run / "checkpoints" / f"step_{step}" / "policy"
    return {
        f"{file.name}/{name}": tensor
        for file in sorted(policy.rglob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def apart(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """The largest difference of two checkpoints."""
    assert one.keys() == two.keys()
    return max(float((one[name].double() - two[name].double()).abs().max()) for name in one)


def test_two_processes_give_the_parameters_of_one(case: Case, tmp_path: Path) -> None:
    done = run_in_two_processes("train_ppo", *case.command(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    start, one, two = weights(case.whole, 0), weights(case.whole, STEPS), weights(tmp_path / "two", STEPS)
    assert apart(start, one) >= 1e-3
    assert apart(one, two) <= 1e-5
    for ours, theirs in zip(rows(tmp_path / "two/metrics.jsonl"), rows(case.whole / "metrics.jsonl"), strict=True):
        assert (ours.pop("processes"), theirs.pop("processes")) == (2, 1)
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-4)


def test_killed_between_a_checkpoint_and_a_step_the_same_command_ends_alike(case: Case, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    done = run_again_after_a_kill(
        "train_ppo", *case.command(output), when=lambda: lines_in(output / "metrics.jsonl") > EVERY
    )
    assert f"step_{EVERY} (step {EVERY} of {STEPS})" in done.stderr
    for step in (0, EVERY, STEPS):
        ours, theirs = weights(output, step), weights(case.whole, step)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert rows(output / name) == rows(case.whole / name)
    for name in ("loop.json", "ppo.json"):
        ends = [read_json(run / "checkpoints" / f"step_{STEPS}" / name) for run in (output, case.whole)]
        assert ends[0] == ends[1]


def test_the_doctor_finds_it_ready(case: Case, tmp_path: Path) -> None:
    """Two processes included."""
    words = [*case.command(tmp_path / "run"), f"doctor.output={tmp_path}/report.json", "doctor.prompts=2"]
    done = run_script("doctor", *words, environment={"PYTHONEXECUTABLE": str(PRELOADED_PYTHON)}, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    status = {finding["check"]: finding["status"] for finding in read_json(tmp_path / "report.json")["findings"]}
    assert status["training step"] == status["two processes"] == status["untouched"] == "pass"


def test_ppo_on_reward_models_with_a_decoder_only_backbone(smoke: Path, smoke_keys: list[str], tmp_path: Path) -> None:
    """A score a segment, and a score a response with the moments of its training outputs."""
    save_llama(tmp_path / "llama", max_length=512)
    write_feedback(tmp_path / "feedback.json", cue_records(24))
    for kind in ("relevance", "preference"):
        words = [f"reward_model={kind}", f"data={tmp_path}/feedback.json", f"model={tmp_path}/llama", "total_steps=2"]
        few = ["validate_every=2", "checkpoint_every=2", "processes.precision=fp32"]
        done = run_script("train_reward_model", *words, *few, f"output_dir={tmp_path}/{kind}")
        assert done.returncode == 0, done.stderr
    places = {"relevance": "relevance", "completeness": "preference"}
    paths = [f"reward.components.{name}.path={tmp_path}/{kind}" for name, kind in places.items()]
    command = ["experiment=smoke", *smoke_keys, *paths, "total_steps=2", f"output_dir={tmp_path}/run"]
    done = run_script("train_ppo", *command)
    assert done.returncode == 0, done.stderr
    for row in rows(tmp_path / "run/metrics.jsonl"):
        assert row["segments/relevance"] >= 1 and row["segments/completeness"] == 1
        assert row["reward/completeness/raw"] != 0
    start, trained = weights(tmp_path / "run", 0), weights(tmp_path / "run", 2)
    assert apart(start, trained) >= 1e-3
    assert apart(start, weights(smoke, 0)) == 0 and apart(trained, weights(smoke, 2)) >= 1e-4
