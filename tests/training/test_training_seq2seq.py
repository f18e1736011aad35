"""Encoder–decoder families beside T5 are trained: the check at the start, SFT, PPO, resuming, processes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from ppo_toy import assert_alike, make_trainer, run_together, save_checkpoint
from rl_toy import prompts, tokenizer
from seq2seq_toy import FAMILIES, POSITIONS, seq2seq_model, seq2seq_policy
from tokenizers import processors
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from finegrained_rlhf.core.errors import ConsistencyError, ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.inputs import encode_prompts
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.families.seq2seq import Seq2SeqFamily, bart_stacks
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Seq2SeqPolicy
from finegrained_rlhf.models.tiny_networks import wrap_tokenizer
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import token_ends
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from finegrained_rlhf.training.sft import TrainSFT
from finegrained_rlhf.training.sft.trainer import SFTTrainer, demonstrations


def moved(trainer: PPOTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters() if p.requires_grad}


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    """Metrics of the steps, without times."""
    done = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in metrics.items() if not name.startswith("time/")} for metrics in done]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_start_of_a_run_compares_with_forward(family: str) -> None:
    ours = seq2seq_policy(family)
    assert 0 < check_forward(ours, prompts("t5"), Processes()) < 1e-5
    ours.family = Seq2SeqFamily("lm_head alone", lambda model, product, hidden: product(hidden), bart_stacks)
    with pytest.raises(ConsistencyError, match=r"not those of .*\.forward: they differ by up to [1-9]"):
        check_forward(ours, prompts("t5"), Processes())


def test_a_prompt_beyond_the_positions_stops_the_start() -> None:
    long = Prompt("long", "", (5,) * (POSITIONS + 1))
    with pytest.raises(
        ModelError, match=f"has {POSITIONS} .max_position_embeddings.: set max_prompt_tokens to {POSITIONS} or"
    ):
        check_forward(seq2seq_policy("pegasus"), [long], Processes())


def test_language_codes_stand_around_prompts_and_not_in_answers() -> None:
    """mBART's tokenizer writes a language behind each text; a decoder gets the answer's as its start."""
    core = copy.deepcopy(tokenizer().backend_tokenizer)
    spoken = wrap_tokenizer(core, None)
    spoken.add_special_tokens({"additional_special_tokens": ["en_XX"]})
    code = spoken.convert_tokens_to_ids("en_XX")
    suffix = processors.TemplateProcessing(single="$A </s> en_XX", special_tokens=[("</s>", 1), ("en_XX", code)])
    spoken.backend_tokenizer.post_processor = suffix
    size = {"size": len(spoken), "decoder_start_token_id": code}
    ours = Seq2SeqPolicy(seq2seq_model("mbart", **size), spoken).eval()
    words = spoken("red blue", add_special_tokens=False)["input_ids"]
    (prompt,) = encode_prompts([("p", "red blue")], spoken, 8)
    (cut,) = encode_prompts([("p", "red blue green red blue green red blue")], spoken, 5)
    assert prompt.input_ids == (*words, 1, code) and cut.input_ids[-2:] == (1, code) and len(cut.input_ids) == 5
    (shown,) = demonstrations([Prompt("p", "", prompt.input_ids, {"references": ("red blue",)})], ours, 8)
    assert ours.start_ids == (code,) and shown.answer_ids == (*words, 1)
    assert token_ends(spoken, (words[0], code, words[1], 1)) == ("red blue", (3, 3, 8, 8))


@pytest.mark.needs("spacy")
@pytest.mark.parametrize("family", FAMILIES)
def test_sft_learns_an_answer(family: str) -> None:
    """One of them until it gives the answer."""
    ours, number = seq2seq_policy(family), 20 if family == "bart" else 3
    asked = [Prompt(p.id, p.text, p.input_ids, {"references": ("red blue",)}) for p in prompts("t5", 3)]
    sizes = {"batch_size": 3, "micro_batch_size": 2, "validation_batch_size": 3}
    optimizer = OptimizerConfig(lr=0.02, schedule="constant")
    job = TrainSFT(
        output_dir="", data="", policy=PolicyConfig(""), optimizer=optimizer, total_steps=number, dropout=0.0,
        max_answer_tokens=4, **sizes,
    )  # fmt: skip
    trainer = SFTTrainer(job, ours, demonstrations(asked, ours, 4), asked, Processes())
    losses = [trainer.train_step(step)["loss"] for step in range(1, number + 1)]
    assert losses[0] > losses[1] > losses[2]
    if family == "bart":
        assert losses[-1] < 0.5 < losses[0] / 2  # nats a token
        assert trainer.validate(number)["score"] == pytest.approx(1.0)


@pytest.mark.parametrize(("family", "shared"), [(f, f in ("mbart", "t5gemma2")) for f in FAMILIES])
def test_ppo_starts_with_ratio_one_and_moves_all_that_is_read(tmp_path: Path, family: str, shared: bool) -> None:
    trainer = make_trainer(tmp_path, family, shared=shared, epochs=1, lr=3e-3)
    before = moved(trainer)
    first, second = steps(trainer, 1, 2)
    assert first["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert first["kl"] == pytest.approx(0.0, abs=1e-4) and abs(second["kl"]) > 1e-5
    still = {name for name, p in moved(trainer).items() if torch.equal(p, before[name])}
    assert all("eoi_embedding" in name for name in still)  # read in place of a token that no prompt here has
    trainer.model_to_save()(tmp_path / "saved")
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "saved")
    own = trainer.models.policy.model.state_dict()
    assert all(torch.equal(weight, own[name]) for name, weight in plain.state_dict().items())


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    """On disk the weights of this family have other names than in its modules."""
    save_policy(seq2seq_policy("t5gemma2"), tmp_path / "start")

    def fresh(name: str) -> PPOTrainer:
        owner = open_policy(tmp_path / "start")
        return make_trainer(tmp_path / name, "t5gemma2", owner=owner, lr=5e-3, epochs=1, samples=2)

    whole = fresh("a")
    expected = steps(whole, 1, 2)
    stopped = fresh("b")
    steps(stopped, 1, 1)
    checkpoint = save_checkpoint(stopped, tmp_path / "checkpoint")
    resumed = fresh("b")
    resumed.load_state(checkpoint)
    assert steps(resumed, 2, 2) == expected[1:]
    for name, weight in moved(whole).items():
        assert torch.equal(moved(resumed)[name], weight), name


def test_two_processes_do_what_one_does(tmp_path: Path) -> None:
    def work(processes: Processes) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
        place = tmp_path / str(processes.count)
        trainer = make_trainer(place, "bart", owner=owners.pop(), processes=processes, epochs=1)
        return steps(trainer, 1, 2), moved(trainer)

    owners = [seq2seq_policy("bart")]
    one = work(Processes())
    owners = [copy.deepcopy(seq2seq_policy("bart")) for _ in range(2)]
    assert_alike(one, run_together(2, work))
