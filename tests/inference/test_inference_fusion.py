"""Prompts that are read in pieces, from the file to the trained policy: what a piece holds, loses and remembers."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import assert_alike, make_trainer, run_together, save_checkpoint
from rl_toy import policy, tokenizer
from safetensors.torch import load_file
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.inputs import prompts_for, read_prompts
from finegrained_rlhf.inference.jobs import Evaluate, Generate
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.chat import FusionConfig, PromptConfig
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from finegrained_rlhf.training.sft.job import TrainSFT

FID = PromptConfig(fusion=FusionConfig())
TALK = {
    "id": "talk",
    "turns": ["who ran", "one dog", "far away", "a cat", "who sat"],
    "passages": [
        {"id": "The cat:1", "title": "the cat|a mat", "text": "the cat sat on a mat"},
        {"id": "The dog:0", "text": "one dog ran far away"},
    ],
    "answer": ["the cat sat"],
}
ASKED = {
    "id": "asked",
    "question": "who saw it",
    "passages": [["the cat", "a mat,", "one dog"]],
    "answer": ["red blue"],
}
BARE = {"id": "bare", "turns": ["red"], "answer": ["green"]}


def words(text: str) -> tuple[int, ...]:
    return tuple(tokenizer()(text)["input_ids"])


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_jsonl(tmp_path / "data.jsonl", [TALK, ASKED, BARE])
    return str(tmp_path / "data.jsonl")


def pieces(prompt: Prompt) -> list[tuple[int, ...]]:
    ids, found = list(prompt.input_ids), []
    for length in prompt.pieces:
        found.append(tuple(ids[:length]))
        ids = ids[length:]
    return found


CONTEXT = "question 1: who ran answer 1: one dog question 2: far away answer 2: a cat question 3: who sat"


def test_a_piece_is_the_conversation_or_the_question_with_one_passage(data: str) -> None:
    talk, asked, bare = read_prompts(data, tokenizer(), 500, prompt=FID)
    assert pieces(talk) == [
        words(f"{CONTEXT} evidence: The cat:1 title: the cat|a mat context: the cat sat on a mat"),
        words(f"{CONTEXT} evidence: The dog:0 title:  context: one dog ran far away"),
    ]
    assert pieces(asked) == [words("question: who saw it context: wikipage: the cat text: a mat, one dog")]
    assert asked.input_ids == read_prompts(data, tokenizer(), 500)[1].input_ids  # one passage: the plain prompt
    assert pieces(bare) == [words("question 1: red")]
    assert talk.metadata["question"] == CONTEXT and talk.metadata["references"] == ("the cat sat",)
    (whole, *_) = read_prompts(data, tokenizer(), 500)
    assert whole.pieces == () and whole.text == talk.text and whole.text.startswith(f"{CONTEXT} evidence: The cat:1")
    first = read_prompts(data, tokenizer(), 500, prompt=PromptConfig(fusion=FusionConfig(passages=1)))
    assert pieces(first[0]) == pieces(talk)[:1]


def test_a_long_piece_loses_its_passage_first_and_then_the_utterances_in_the_middle(
    data: str, caplog: pytest.LogCaptureFixture
) -> None:
    def first(limit: int, least: int) -> tuple[int, ...]:
        return pieces(read_prompts(data, tokenizer(), limit, prompt=PromptConfig(fusion=FusionConfig(9, least)))[0])[0]

    end = words("")
    passage = words("evidence: The cat:1 title: the cat|a mat context: the cat sat on a mat")[:-1]
    heads = [words(text)[:-1] for text in (CONTEXT, CONTEXT.replace("answer 1: one dog ", ""))]
    barest = words("question 1: who ran question 3: who sat")[:-1]
    with caplog.at_level(logging.WARNING):
        fits = len(heads[0]) + len(passage) + 1
        assert first(fits, 4) == heads[0] + passage + end and "longer" not in caplog.text
        assert first(fits - 3, 4) == heads[0] + passage[:-3] + end
        assert "1 of 4 pieces are longer than" in caplog.text and "0 of them lost" in caplog.text
        assert first(fits - 3, len(passage)) == heads[1] + passage[: fits - 4 - len(heads[1])] + end
    assert "1 of them lost earlier utterances" in caplog.text
    left = first(len(heads[0]) + 9, 9)  # with the end token no room for nine
    assert left[: len(heads[1])] == heads[1] and len(left) - len(heads[1]) - len(end) >= 9
    tight = len(barest) + 5
    assert first(tight, 400) == barest + passage[:4] + end
    with pytest.raises(DataError, match=r"record talk.*a piece of the prompt has \d+ tokens, the limit is 40"):
        read_prompts(data, tokenizer(), 40, "refuse", FID)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"turns": ["a", "b"]}, "record 0, field turns: expected an odd number of utterances"),
        ({"turns": ["a", " ", "b"]}, r"record 0, field turns\[1\]"),
        ({"passages": [{"id": "", "text": "x"}]}, r"record 0, field passages\[0\].id"),
        ({"passages": [{"id": "a", "text": "x", "title": ["y"]}]}, r"passages\[0\].title: expected a text, got list"),
    ],
)
def test_damaged_conversations_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    write_jsonl(tmp_path / "data.jsonl", [{**TALK, **changes}])
    with pytest.raises(DataError, match=problem):
        read_prompts(tmp_path / "data.jsonl", tokenizer(), 500, prompt=FID)


def test_what_cannot_be_read_in_pieces_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "texts.jsonl", [{"id": "x", "text": "red blue"}])
    with pytest.raises(DataError, match="record x, field passages: prompts that are read in pieces"):
        read_prompts(tmp_path / "texts.jsonl", tokenizer(), 500, prompt=FID)
    with pytest.raises(ConfigError, match="only encoder-decoders read a prompt in pieces"):
        prompts_for(policy("gpt2"), [], 64, "truncate", FID)
    with pytest.raises(ConfigError, match=r"prompt.chat_template: prompts that are read in pieces"):
        PromptConfig("on", fusion=FusionConfig())
    with pytest.raises(ConfigError, match=r"passages: expected at least 1"):
        FusionConfig(0)
    write_json(tmp_path / "saved/prompt.json", {"chat_template": "auto", "fusion": {"parts": 3}})
    save_policy(policy(), tmp_path / "saved")
    with pytest.raises(ModelError, match=r"prompt.json: not a record of how prompts are put"):
        open_policy(tmp_path / "saved")


def test_a_fine_tuned_policy_remembers_that_it_reads_pieces(data: str, tmp_path: Path) -> None:
    save_policy(policy(), tmp_path / "start")

    def sft(output: Path, steps: int, **keys: Any) -> None:
        TrainSFT(
            data=data,
            output_dir=str(output),
            policy=PolicyConfig(str(tmp_path / "start"), **keys),
            optimizer=OptimizerConfig(lr=0.01, eps=1e-8, schedule="constant"),
            total_steps=steps,
            checkpoint_every=1 if steps < 9 else 500,
            dropout=0.0,
            batch_size=3,
            micro_batch_size=2,
            max_answer_tokens=8,
            max_prompt_tokens=100,
            prompt=FID,
            processes=ProcessConfig(precision="fp32"),
        ).run()

    sft(tmp_path / "run", 75)
    assert read_json(tmp_path / "run/policy/prompt.json")["fusion"] == {"passages": 50, "passage_tokens": 192}
    keys: dict[str, Any] = {"max_new_tokens": 8, "max_prompt_tokens": 100}
    Generate(str(tmp_path / "run"), data, str(tmp_path / "answers.jsonl"), **keys).run()
    answers = [row["response"].strip() for row in read_jsonl(tmp_path / "answers.jsonl")]
    assert answers == ["the cat sat", "red blue", "green"]
    Evaluate(data, str(tmp_path / "metrics.json"), str(tmp_path / "run"), **keys).run()
    assert read_json(tmp_path / "metrics.json")["rouge_lsum"] == pytest.approx(1.0)
    memory = open_policy(tmp_path / "run")
    assert memory.prompt == FID

    sft(tmp_path / "whole", 3, lora=LoraConfig(rank=2))
    sft(tmp_path / "parts", 1, lora=LoraConfig(rank=2))
    sft(tmp_path / "parts", 3, lora=LoraConfig(rank=2))
    one, other = (next((tmp_path / name / "policy").rglob("adapter*.safetensors")) for name in ("whole", "parts"))
    weights = load_file(one), load_file(other)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in metrics.items() if not name.startswith("time/")} for metrics in done]


def weights_of(trainer: PPOTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters() if p.requires_grad}


def test_two_processes_train_on_pieces_as_one_does(tmp_path: Path) -> None:
    def work(processes: Processes) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        place = tmp_path / str(processes.count)
        trainer = make_trainer(place, owner=owners.pop(), processes=processes, epochs=2, in_pieces=True)
        return steps(trainer, 1, 2), weights_of(trainer)

    owners = [policy()]
    one = work(Processes())
    owners = [copy.deepcopy(policy()) for _ in range(2)]
    assert_alike(one, run_together(2, work))


def test_ppo_on_pieces_resumes_and_takes_adapters(tmp_path: Path) -> None:
    def fresh(name: str) -> PPOTrainer:
        torch.manual_seed(3)
        plain = policy()
        owner = type(plain)(plain.model, plain.tokenizer, add_lora(plain.model, LoraConfig(rank=2))).eval()
        return make_trainer(tmp_path / name, owner=owner, lr=5e-3, epochs=2, samples=2, in_pieces=True)

    whole = fresh("a")
    expected = steps(whole, 1, 3)
    assert all(metrics["ratio"] == pytest.approx(1.0, abs=0.2) for metrics in expected)
    stopped = fresh("b")
    steps(stopped, 1, 2)
    resumed = fresh("b")
    resumed.load_state(save_checkpoint(stopped, tmp_path / "checkpoint"))
    assert steps(resumed, 3, 3) == expected[2:]
    for name, weight in weights_of(whole).items():
        assert torch.equal(weights_of(resumed)[name], weight), name
