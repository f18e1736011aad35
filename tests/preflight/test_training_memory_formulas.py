"""The parts of the memory estimate against the code that they describe, and by hand."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_toy import PLAN, SAMPLES, SHAPE, job_of, measured, save_models
from rl_toy import policy as toy_policy
from rl_toy import prompts as toy_prompts

from finegrained_rlhf.core.records import Prompt, Sample
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.models.distribution import support_of, warp_logits
from finegrained_rlhf.models.families import t5
from finegrained_rlhf.models.families.fused import fuse
from finegrained_rlhf.models.loading import load_tokenizer
from finegrained_rlhf.models.logprobs import token_logprobs
from finegrained_rlhf.models.tiny import TinyLlamaConfig
from finegrained_rlhf.models.tiny_networks import build_llama
from finegrained_rlhf.models.weights.frozen import frozen_copy
from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory.plan import Activations
from finegrained_rlhf.preflight.memory.preflight import _reward_models, plan_of
from finegrained_rlhf.preflight.memory.probe import (
    Layers,
    ProbeBatch,
    ProbeDevice,
    layer_parameters,
    layers_of,
    policy_activations,
    policy_shell,
    saved_bytes,
    shape_of,
    value_shell,
)
from finegrained_rlhf.preflight.memory.report import memory_verdict, peak, phases, remedies, report
from finegrained_rlhf.rewards import RewardConfig
from finegrained_rlhf.rollout.fast import KEPT_BYTES
from finegrained_rlhf.rollout.steppers.causal import CausalStepper
from finegrained_rlhf.rollout.steppers.t5 import T5Stepper
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.mini_batches import deal
from reward_models import MakeTinyRewardModels, SequenceScorer
from reward_models.encoders.inputs import EncodedInput, pad_inputs


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


# Its parts against the code that they describe ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["t5", "untied", "gpt2", "lora"])
def test_shells_have_the_parameters_of_the_models(models: Path, kind: str) -> None:
    lora = LoraConfig(rank=4) if kind == "lora" else None
    config = PolicyConfig(str(models / ("t5" if lora else kind)), lora=lora)
    real = config.load()
    shell = policy_shell(config, real.tokenizer)
    assert all(parameter.is_meta for parameter in shell.parameters())
    shape = shape_of(shell, shell.model.config)
    assert shape.parameters == sum(p.numel() for p in real.parameters())
    assert shape.trained == sum(p.numel() for p in real.parameters() if p.requires_grad)
    value = ValueConfig("separate", config.path)
    assert shape_of(value_shell(value, shell), shell.model.config).parameters == sum(
        p.numel() for p in value.load(real).parameters()
    )


def test_layers_extrapolate(models: Path) -> None:
    """What two layers each are said to keep is what a model of three encoder and four decoder layers keeps."""
    config, processes = PolicyConfig(str(models / "t5")), Processes()
    batch = ProbeBatch(SAMPLES, 32, 16)
    tokenizer = config.load().tokenizer
    one = policy_activations(policy_shell(config, tokenizer), config, False, batch, ProbeDevice(processes))
    whole = policy_shell(config, tokenizer, Layers(3, 4)).to_empty(device=processes.device)
    assert kept_by(whole) == one.outside + 3 * one.encoder_layer + 4 * one.decoder_layer


def kept_by(policy: Any) -> int:
    ids = torch.ones(SAMPLES, 16, dtype=torch.long)
    prompt = Prompt("p", "", (1,) * 32)
    return saved_bytes(policy, lambda: policy.hidden(policy.encode([prompt]), torch.zeros_like(ids[:, 0]), ids))


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_fused_layers_keep_less(models: Path, tmp_path: Path, kind: str) -> None:
    """What is said of a fused layer, whose weights nobody has read, is what the model keeps that is trained."""
    path = models / "t5"
    if kind == "llama":
        tokenizer = PolicyConfig(str(path)).load().tokenizer
        path = tmp_path
        build_llama(tokenizer, TinyLlamaConfig(64, 256, 3, 4, 2, 512), 0).save_pretrained(path)
        tokenizer.save_pretrained(path)
    config, processes = PolicyConfig(str(path)), Processes(ProcessConfig(precision="bf16"))
    policy, batch = config.load(), ProbeBatch(SAMPLES, 32, 16)
    shell = policy_shell(config, policy.tokenizer)
    plain, fused = (
        policy_activations(shell, config, False, batch, ProbeDevice(processes, fused=fused)) for fused in (False, True)
    )
    if kind == "t5":  # a Llama saves only what torch's norm saves on CUDA
        assert fused.encoder_layer < plain.encoder_layer
        assert fused.decoder_layer < plain.decoder_layer
    fuse(policy.model)
    copies = 2 * sum(p.numel() for p in layer_parameters(policy.model, policy.model.config))
    layers = layers_of(policy.model.config)
    with processes.autocast():
        kept = kept_by(policy) - copies
    told = fused.outside + layers.encoder * fused.encoder_layer + layers.decoder * fused.decoder_layer
    assert kept == pytest.approx(told, abs=1024 * (1 + layers.encoder + layers.decoder))


def test_attention_that_is_written_out_on_a_cpu_alone(models: Path) -> None:
    """A plan for GPUs that are not here counts T5's self-attention as torch's fused attention keeps it."""
    config, processes = PolicyConfig(str(models / "t5")), Processes()
    policy, batch = config.load(), ProbeBatch(SAMPLES, 32, 16)
    shell = policy_shell(config, policy.tokenizer)
    here, there = (
        policy_activations(shell, config, False, batch, ProbeDevice(processes, cuda=cuda)) for cuda in (False, True)
    )
    heads, width = policy.model.config.num_heads, policy.model.config.d_kv
    layer = torch.nn.Module()

    def kept(rows: int, length: int, fused: bool) -> int:
        states = [torch.randn(rows, heads, length, width, requires_grad=True) for _ in range(3)]
        bias = None if fused else torch.randn(1, heads, length, length)
        return saved_bytes(layer, lambda: t5.attend(states[0], states[1], states[2], bias))

    for rows, length, less in (
        (1, 32, here.encoder_layer - there.encoder_layer),
        (SAMPLES, 16, here.decoder_layer - there.decoder_layer),
    ):
        outputs = 4 * rows * heads * length * (width + 1)  # kept by the fused kernel: outputs and log-sums
        assert less == kept(rows, length, False) - kept(rows, length, True) + outputs


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("scored", ["plain", "top_k", "top_p"])
def test_logits_that_exist_together(scored: Any, entropy: bool) -> None:
    """The update knows what was left; a validation, without gradients, does not."""
    tokens, vocabulary = 256, 4000
    head, states = torch.nn.Linear(8, vocabulary), torch.randn(1, tokens, 8, requires_grad=True)
    ids, mask = torch.zeros(1, tokens, dtype=torch.long), torch.ones(1, tokens, dtype=torch.long)
    sample = {"plain": None, "top_k": Sample(1, 0.7, 20), "top_p": Sample(1, 0.7, 20, 0.9)}[scored]
    left = None if sample is None else support_of(warp_logits(head(states.detach()), sample, keep=ids), ids, sample)

    def score(support: torch.Tensor | None) -> torch.Tensor:
        given = {"entropy": entropy, "entropy_gradient": entropy, "support": support}
        found = token_logprobs(states, ids, mask, head, scored=sample, **given)
        return found.logprobs + 0.1 * found.entropy

    expected = memory.LOGIT_COPIES[scored]
    size, cpu = 4 * tokens * vocabulary, torch.device("cpu")
    with torch.no_grad():
        most = max(measured(lambda: score(None), cpu), measured(lambda: score(left), cpu))
        assert entropy or most / size == pytest.approx(expected[0], rel=0.1)  # the entropy: as a backward pass
    assert measured(lambda: score(left).sum().backward(), cpu) / size == pytest.approx(expected[1], rel=0.1)


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1", "gpt2"])
def test_caches_of_the_steppers(kind: str) -> None:
    """Against the steppers' own tensors: GPT-2 keeps the prompts without their last token."""
    policy = toy_policy(kind)
    encoded = policy.encode(toy_prompts(kind, 3))
    longest = encoded.prompt_ids.shape[1]
    plan = replace(
        PLAN, policy=shape_of(policy, policy.model.config), prompt_tokens=longest - (kind == "gpt2"), response_tokens=7
    )
    if kind == "gpt2":
        cache = CausalStepper(policy, encoded, samples=2, max_new_tokens=7)._cache
        tensors = [tensor for layer in cache.layers.values() for tensor in vars(layer).values()]
    else:
        stepper = T5Stepper(policy, encoded, samples=2, max_new_tokens=7)
        layers = stepper.layers
        names = ("own", "cross_keys", "cross_values")
        tensors = [getattr(layer, name) for layer in layers for name in names]
        copies = [block.qkv for block in stepper.weights.blocks]
        if kind == "t5-v1.1":
            copies += [block.inner for block in stepper.weights.blocks]
        assert memory.snapshot_bytes(plan) == sum(copy.nbytes for copy in copies)
    assert memory.cache_bytes(plan, 3, 2) == sum(tensor.nbytes for tensor in tensors)


@torch.no_grad()
def test_a_batch_of_a_decoder_only_reward_model(models: Path, tmp_path: Path) -> None:
    """Four inputs of 200 tokens through a Llama and a GPT-2, as a scorer runs them."""
    tokenizer = load_tokenizer(models / "gpt2")
    build_llama(tokenizer, TinyLlamaConfig(256, 1024, 2, 4, 4, 512), 0).save_pretrained(tmp_path / "llama")
    tokenizer.save_pretrained(tmp_path / "llama")
    for base in (tmp_path / "llama", models / "gpt2"):
        MakeTinyRewardModels(str(base), str(tmp_path), kinds=("preference",)).run()
        scorer = SequenceScorer(str(tmp_path / "preference"))
        job = job_of(models, "gpt2", reward=RewardConfig({"style": scorer}, {"style": 1.0}))
        model, batch = scorer.model, pad_inputs([EncodedInput((9,) * 200, ())] * 4, scorer.model.pad_id)
        model.answer_scores(batch)
        needed = measured(lambda: model.answer_scores(batch), torch.device("cpu"))  # noqa: B023
        assert memory.reward_bytes(replace(PLAN, rewards=tuple(_reward_models(job, 4, 200)))) == pytest.approx(
            needed, rel=0.1
        )


# By hand ------------------------------------------------------------------------------------------------------------


def test_what_lasts() -> None:
    assert memory.gradient_bytes(PLAN) == 4 * 1600
    assert memory.lasting_bytes(PLAN) == 4 * (2 * 1000 + 600 + 500) + 8 * 1600
    adapters = replace(PLAN, policy=replace(SHAPE, trained=100), reference_copy=False)
    assert memory.lasting_bytes(adapters) == 4 * (1000 + 600 + 500) + 8 * 700


def test_update_by_hand() -> None:
    policy, value = 2 * (10 + 2 * 100 + 3 * 200), 2 * (1 + 2 * 10 + 3 * 20)
    logits = 60 * 50 * 4 * 5 + 2 * 60 * 8 * 4
    assert memory.update_bytes(PLAN) == 6400 + policy + logits
    wide = replace(PLAN, value_activations=Activations(10**6, 10, 20, 3, 2))
    assert memory.update_bytes(wide) == 6400 + policy + (60 * 50 * 4) + value + 2 * (10**6 - 1)
    alone = replace(PLAN, micro_batch_prompts=4)
    assert memory.update_bytes(alone) == 2400 + 2 * (policy + logits)
    less = replace(PLAN, checkpointing=True)
    assert memory.update_bytes(less) == 6400 + 2 * (10 + 2 * 7 + 3 * 5) + logits
    many = replace(PLAN, policy=replace(SHAPE, vocabulary=1), processes=2, prompts=2)
    assert memory.update_bytes(many) == 2 * 6400  # all gradients and the buffer that sums them


def test_causal_passes_by_hand() -> None:
    """Two prompts of 20 tokens, three responses of 10 to each: 6 rows of 30, or 2 of 50 with their masks."""
    causal = replace(SHAPE, encoder_layers=0)
    token = 8 * 8 + 2 * 32 * 4
    assert memory.reading_bytes(PLAN, causal) == 6 * 30 * token
    packed = replace(causal, packed=True)
    assert memory.reading_bytes(PLAN, packed) == 2 * 50 * token + 2 * 50 * 50 * 5
    assert memory.reading_bytes(replace(PLAN, bf16=True), packed) == 2 * 50 * (8 * 8 + 2 * 32 * 2) + 2 * 50 * 50 * 3
    one = replace(PLAN, samples=1)
    assert memory.reading_bytes(one, packed) == memory.reading_bytes(one, causal) == 2 * 30 * token


def test_batches_of_a_process() -> None:
    assert PLAN.group == 2 and replace(PLAN, prompts=1).group == 1
    assert replace(PLAN, micro_batch_tokens=99).group == 1  # one prompt has 20 + 3 · 10 tokens
    assert replace(PLAN, micro_batch_tokens=100).group == 2
    assert replace(PLAN, micro_batch_tokens=10).group == 1
    assert replace(PLAN, prompts_per_batch=3).decoded == 3


def test_samples_that_share_nothing_need_more() -> None:
    assert memory.cache_bytes(PLAN, 4, 3) == 3 * 2 * (4 * 20 + 12 * 10) * 6 * 4
    assert memory.cache_bytes(replace(PLAN, fast=False), 4, 3) == 3 * 2 * 12 * (20 + 10) * 6 * 4
    recorded = replace(PLAN, cuda=True)
    causal = replace(recorded, bf16=True, policy=replace(PLAN.policy, encoder_layers=0))
    caches = 2 * 3 * 2 * (4 * 128 + 12 * 10) * 6 * 2
    assert memory.kept_cache_bytes(causal) == 8 * caches + memory.snapshot_bytes(causal)  # sixteen shapes, one copy
    assert memory.kept_cache_bytes(recorded) == 16 * 3 * 2 * (4 * 128 + 12 * 10) * 6 * 4 + 4 * 3 * 3 * 8 * 6
    large = replace(recorded, samples=1_000_000)
    one = memory.cache_bytes(large, 4, 1_000_000)
    assert one > KEPT_BYTES and memory.kept_cache_bytes(large) == 2 * one + 4 * 3 * 3 * 8 * 6
    middle = replace(recorded, samples=100_000)
    one = memory.cache_bytes(middle, 4, 100_000)  # the last shape is recorded before one is dropped
    assert 3 * one < KEPT_BYTES < 4 * one and memory.kept_cache_bytes(middle) == KEPT_BYTES + one + 4 * 3 * 3 * 8 * 6


def test_a_draft_draws_from_more_logits_and_records_nothing() -> None:
    plan = replace(PLAN, policy=replace(SHAPE, vocabulary=10**6))
    ahead = replace(plan, draft=3)
    more = memory.rollout_bytes(ahead, 2, 5) - memory.rollout_bytes(plan, 2, 5)
    assert more == 3 * 2 * 5 * 10**6 * memory.SAMPLING_BYTES
    assert replace(plan, cuda=True, fast=True).recorded and not replace(ahead, cuda=True, fast=True).recorded


def test_verdict_says_what_to_change() -> None:
    plan = replace(PLAN, validation_prompts=2)
    greedy, sampled = (phases(replace(plan, validation_samples=n))[-1] for n in (1, 4))
    assert sampled.needed > greedy.needed and "2 × 4 responses" in sampled.batch and "2 × 1 response," in greedy.batch
    expected, phase = peak(plan)
    assert {found.name for found in phases(plan)} == {"rollout", "rewards", "scoring", "update", "validation"}
    assert expected == memory.lasting_bytes(plan) + max(found.needed for found in phases(plan))
    assert memory_verdict(plan, expected * 10 // 9 + 1, "It").endswith("fits.")
    refused = memory_verdict(plan, expected, "It")
    assert "does not fit" in refused and phase.name == "update"
    for name in ("ppo.micro_batch_prompts=1", "policy.gradient_checkpointing=true", "processes.precision=bf16"):
        assert name in refused
    changes = remedies(plan)
    assert peak(changes["ppo.micro_batch_prompts=1"](plan))[0] < expected
    assert changes["rollout.prompts_per_batch=1"](plan).validation_prompts == 1
    assert changes["reward.components.style.batch_size=1"](plan).rewards[0].rows == 1
    table = report(plan, expected, "It")
    assert all(f"| {name} " in table for name in ("policy", "reference", "value", "style", "update"))
    assert "policy.gradient_checkpointing" not in memory_verdict(replace(plan, checkpointing=True), 1, "It")


def test_frozen_layers_in_bf16_take_half_and_are_not_copied() -> None:
    stored = replace(PLAN, bf16=True, stored_in_bf16=100)
    plain = replace(PLAN, bf16=True)
    assert memory.lasting_bytes(plain) - memory.lasting_bytes(stored) == 200  # a reference of its own
    for plan in (stored, plain):
        assert memory.cast_bytes(plan, plan.policy, True) == 2000
    lora = replace(stored, reference_copy=False, policy=replace(SHAPE, trained=10))
    assert memory.cast_bytes(lora, lora.policy, True) == 2 * (1000 - 100)
    assert lora.value is not None and memory.cast_bytes(lora, lora.value, True) == 2 * 600


def test_a_frozen_models_head_is_copied_for_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast keeps no copy of a frozen layer; the pass keeps its copy of the head, 50 · 8 numbers."""
    frozen = replace(PLAN, bf16=True, policy=replace(SHAPE, trained=10), checkpointing=True)
    assert memory.cached_bytes(frozen, frozen.policy, True) == 800
    assert memory.cached_bytes(frozen, frozen.policy, False) == 0 == memory.head_copy_bytes(PLAN, SHAPE)
    scoring, update = memory.scoring_bytes(frozen), memory.update_bytes(frozen)
    monkeypatch.setattr(memory, "head_copy_bytes", lambda plan, shape: 0)
    assert memory.scoring_bytes(frozen) == scoring - 800 and memory.update_bytes(frozen) == update - 800


def test_the_plan_counts_what_is_stored_in_bf16(models: Path) -> None:
    bf16 = ProcessConfig(precision="bf16")
    job = job_of(models, "t5", policy=PolicyConfig(str(models / "t5"), frozen_dtype="bfloat16"), processes=bf16)
    whole = job.policy.load()
    reference = frozen_copy(whole)
    stored = sum(p.numel() for p in reference.model.parameters() if p.dtype == torch.bfloat16)
    assert plan_of(job, Processes(bf16)).stored_in_bf16 == stored > 0


def test_what_was_counted_is_freed() -> None:
    """A graph whose saved outputs held it would keep all layers of a large model until the process ends."""
    layer, states = torch.nn.Linear(8, 8), torch.ones(4, 8)
    made: list[weakref.ref[torch.Tensor]] = []

    def run() -> torch.Tensor:
        outputs = layer(states).exp()  # its gradient needs its own output
        made.append(weakref.ref(outputs))
        return outputs

    assert saved_bytes(layer, run) == 2 * 4 * 8 * 4
    gc.collect()
    assert made[0]() is None


@pytest.mark.parametrize(("prompts", "parts", "processes"), [(5, 2, 1), (3, 4, 2), (6, 2, 3), (4, 1, 2), (1, 3, 3)])
def test_the_prompts_of_a_mini_batch_are_the_most_that_are_dealt(prompts: int, parts: int, processes: int) -> None:
    """Over all places at which a process's prompts may begin."""
    plan = replace(PLAN, prompts=prompts, mini_batches=parts, processes=processes, micro_batch_prompts=99)
    alone = processes == 1
    most = 0
    for seed in range(40):
        for start in range(1 if alone else parts):
            dealt = deal(prompts if alone else start + prompts + parts, parts, seed, 1, 0)
            most = max(most, *(len(set(part) & set(range(start, start + prompts))) for part in dealt))
    assert plan.mini_batch_prompts == plan.update_group == most
    assert plan.group == prompts
