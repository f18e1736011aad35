"""The fast engine against the plain one, by the distribution it draws from, and by what it must not depend on."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from rl_toy import ARCHITECTURES, model, policy, prompts, tokenizer
from seldom import seldom
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Rollout, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.distribution import draw, sample_tokens, warp_logits
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import Policy, Seq2SeqPolicy
from finegrained_rlhf.rollout import GenerateEngine, RolloutEngine, make_engine
from finegrained_rlhf.rollout import fast as fast_module
from finegrained_rlhf.rollout.fast import FastEngine, GraphPool
from finegrained_rlhf.rollout.steppers import snapshot
from finegrained_rlhf.rollout.steppers.base import OpenStepper, Stepper
from finegrained_rlhf.rollout.steppers.causal import open_causal
from finegrained_rlhf.rollout.steppers.t5 import T5Stepper

MIXTURES: dict[str, list[Decoding]] = {
    "greedy": [Greedy()],
    "sample": [Sample(3, temperature=2.0)],
    "paper": [Sample(4, temperature=0.7, top_k=20)],
    "several": [Greedy(), Sample(3, 1.5, 5, 0.9), Sample(2, 2.0), Greedy()],
}


def roll(engine: RolloutEngine, asked: Sequence[Prompt], decodings: Sequence[Decoding], tokens: int = 12) -> Rollout:
    return engine.decode(engine.encode(asked), decodings, max_new_tokens=tokens, seed=3, step=1)


def assert_same(a: Rollout, b: Rollout, tolerance: float = 1e-5) -> None:
    assert torch.equal(a.response_ids, b.response_ids)
    assert torch.equal(a.response_mask, b.response_mask)
    assert a.texts == b.texts and a.token_ends == b.token_ends
    for name in ("prompt_index", "sample_index", "decoding_index"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    scale = max(1.0, float(b.logprobs.abs().max()))
    torch.testing.assert_close(a.logprobs, b.logprobs, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_fast_engine_draws_what_generate_draws(kind: str, mixture: str) -> None:
    ours, asked = policy(kind), prompts(kind, 5)
    engine = make_engine(ours)
    assert isinstance(engine, FastEngine)
    found = roll(engine, asked, MIXTURES[mixture])
    assert_same(found, roll(GenerateEngine(ours), asked, MIXTURES[mixture]))
    if kind != "gpt2":  # rows ended at different steps, so some were dropped
        assert len(set(found.lengths().tolist())) > 1


@pytest.mark.parametrize("gated", [pytest.param(False, marks=pytest.mark.slow), True])
def test_at_the_shape_of_t5_small_greedy_text_and_logprobs_are_transformers(gated: bool) -> None:
    """Widths of T5-small (and of T5 v1.1), ragged and padded prompts; transformers one prompt at a time."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=2048, d_model=512, d_kv=64, d_ff=1024 if gated else 2048, num_layers=3, num_heads=8,
        feed_forward_proj="gated-gelu" if gated else "relu", tie_word_embeddings=not gated,
        decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    network = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():  # transformers' own initial logits are nearly flat where the head is not tied
        network.lm_head.weight.mul_(1.0 if not gated else 5.0)
    ours = Seq2SeqPolicy(network, tokenizer())
    generator = torch.Generator().manual_seed(0)
    asked = [Prompt(str(n), "", tuple(torch.randint(2, 2048, (n,), generator=generator).tolist())) for n in (70, 33, 1)]
    engine = make_engine(ours)
    rollout = engine.decode(engine.encode(asked), [Greedy()], max_new_tokens=16)
    for row, prompt in enumerate(asked):
        theirs = network.generate(
            input_ids=torch.tensor([prompt.input_ids]), max_new_tokens=16, do_sample=False, num_beams=1
        )[0, 1:]
        length = int(rollout.lengths()[row])
        assert rollout.response_ids[row, :length].tolist() == theirs.tolist()
        with torch.no_grad():
            logits = network(input_ids=torch.tensor([prompt.input_ids]), labels=theirs[None]).logits[0]
        expected = logits.log_softmax(-1).gather(-1, theirs[:, None])[:, 0]
        torch.testing.assert_close(rollout.logprobs[row, :length], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_decode_logprobs_are_the_teacher_forced_ones(kind: str) -> None:
    ours = policy(kind)
    rollout = roll(make_engine(ours), prompts(kind, 4), [Sample(3, temperature=1.5)])
    with torch.no_grad():
        scored = ours.logprobs(
            ours.encode(rollout.prompts), rollout.prompt_index, rollout.response_ids, rollout.response_mask
        )
    scale = max(1.0, float(scored.logprobs.abs().max()))
    torch.testing.assert_close(rollout.logprobs, scored.logprobs, atol=1e-5 * scale, rtol=0)


def test_scores_of_the_sampling_distribution_come_from_the_decode_too() -> None:
    ours = policy()
    ours.scored = Sample(2, temperature=0.9, top_k=6)
    assert_same(roll(make_engine(ours), prompts(), [ours.scored]), roll(GenerateEngine(ours), prompts(), [ours.scored]))


def test_compaction_and_its_threshold_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, asked = policy(), prompts(count=5)
    kept: list[tuple[int, int]] = []
    keep = T5Stepper.keep

    def spy(self: T5Stepper, chosen: Tensor, rows: Tensor) -> None:
        kept.append((len(chosen), len(rows)))
        keep(self, chosen, rows)

    monkeypatch.setattr(T5Stepper, "keep", spy)
    results = []
    for threshold in (0.0, 0.5, 1.0):
        monkeypatch.setattr(fast_module, "_WORTH_COMPACTING", threshold)
        results.append(roll(make_engine(ours), asked, MIXTURES["several"], tokens=20))
    assert len({p for p, _ in kept}) > 1 and any(rows < 7 * p for p, rows in kept)
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_one_prompt_at_a_time_gives_the_same_rows(kind: str) -> None:
    ours, asked = policy(kind), prompts(kind, 4)
    whole = roll(make_engine(ours), asked, MIXTURES["several"])
    for i, prompt in enumerate(asked):
        part = roll(make_engine(ours), [prompt], MIXTURES["several"])
        rows = whole.prompt_index == i
        width = part.response_ids.shape[1]
        assert torch.equal(whole.response_ids[rows][:, :width], part.response_ids)
        assert not whole.response_mask[rows][:, width:].any()


def test_a_window_longer_than_the_step_changes_nothing() -> None:
    """What a recorded CUDA graph does: it attends over the whole cache, in which later positions are masked."""
    ours, asked = policy(), prompts()
    memory = ours.encode(asked)
    exact, whole = T5Stepper(ours, memory, 2, 9), T5Stepper(ours, memory, 2, 9)
    for stepper in (whole,):  # positions that are not yet written must not matter
        for layer in stepper.layers:
            layer.own.normal_(std=50)
    tokens = exact.first_tokens
    for step in range(9):
        position = torch.tensor([step])
        a, b = exact.logits(tokens, position, step + 1), whole.logits(tokens, position, 9)
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
        tokens = a.argmax(dim=-1)


def test_reloading_reads_weights_and_prompts_into_the_same_tensors() -> None:
    ours, other = policy(seed=0), policy(seed=4)
    asked = prompts(count=4)
    width = max(len(prompt.input_ids) for prompt in asked)
    first = [asked[0], asked[1]]
    second = [Prompt("new", "", asked[0].input_ids[::-1]), asked[2]]
    assert {len(first[0].input_ids), len(second[0].input_ids)} == {width}
    stepper = T5Stepper(ours, ours.encode(first), 2, 5)
    places = [t.data_ptr() for layer in stepper.layers for t in vars(layer).values() if isinstance(t, Tensor)]
    for step in range(5):
        stepper.logits(stepper.first_tokens, torch.tensor([step]), 5)
    ours.model.load_state_dict(other.model.state_dict())
    stepper.reload(ours.encode(second))
    fresh = T5Stepper(other, other.encode(second), 2, 5)
    for step in range(5):
        a = stepper.logits(stepper.first_tokens, torch.tensor([step]), 5)
        b = fresh.logits(fresh.first_tokens, torch.tensor([step]), 5)
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)
    assert places == [t.data_ptr() for layer in stepper.layers for t in vars(layer).values() if isinstance(t, Tensor)]


class Replayed:
    """A recorded step without CUDA: what a graph does, done by calling."""

    def __init__(self, step: Callable[[int], None], volatile: Sequence[Tensor], pool: GraphPool) -> None:
        self.step, self.volatile, self.windows = step, volatile, set[int]()

    def __call__(self, window: int) -> None:
        if window not in self.windows:  # warm up and put the state back, as recording does
            saved = [tensor.clone() for tensor in self.volatile]
            self.step(window)
            for tensor, before in zip(self.volatile, saved, strict=True):
                tensor.copy_(before)
        self.windows.add(window)
        self.step(window)


STEPPERS: list[tuple[str, OpenStepper]] = [("t5", T5Stepper), ("gpt2", open_causal)]


@pytest.mark.parametrize(
    ("kind", "open_stepper", "shared"),
    seldom(
        [(kind, stepper, shared) for kind, stepper in STEPPERS for shared in (False, True)],
        [(*STEPPERS[0], True), (*STEPPERS[1], False)],
    ),
)
def test_a_recorded_step_serves_later_rollouts_of_its_shape(
    kind: str, open_stepper: OpenStepper, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_module, "GraphedStep", Replayed)
    monkeypatch.setattr(snapshot, "shares_weights", lambda _: shared)
    opened: list[Stepper] = []

    def spy(*arguments: Any) -> Stepper:
        opened.append(open_stepper(*arguments))
        return opened[-1]

    ours, other = policy(kind, seed=0), policy(kind, seed=4)
    recording, plain = FastEngine(ours, spy), FastEngine(ours, open_stepper)
    recording._records = lambda: True
    asked = prompts(kind, count=5)
    for some in (asked[:2], asked[2:4]):  # of different lengths, which the bucket hides
        assert_same(roll(recording, some, MIXTURES["several"]), roll(plain, some, MIXTURES["several"]))
    ours.model.load_state_dict(other.model.state_dict())
    assert_same(roll(recording, asked[:2], MIXTURES["several"]), roll(plain, asked[:2], MIXTURES["several"]))
    assert len(opened) == 1
    for decodings in (MIXTURES["sample"], MIXTURES["paper"], MIXTURES["several"]):
        assert_same(roll(recording, asked[:2], decodings, 40), roll(plain, asked[:2], decodings, 40))
    assert len(opened) == len(recording._recorded) == 4
    roll(recording, asked[:2], MIXTURES["sample"], 40)
    assert len(opened) == 4
    weights = {id(stepper.weights if kind == "t5" else stepper._copy) for stepper in opened}  # type: ignore[attr-defined]
    assert len(weights) == (1 if shared else 4)
    monkeypatch.setattr(fast_module, "KEPT_BYTES", 0)
    roll(recording, asked[:2], MIXTURES["sample"], 40)
    assert len(opened) == 4  # what is there is used
    roll(recording, asked[:3], MIXTURES["sample"], 40)
    assert len(opened) == 5 and len(recording._recorded) == 2


@pytest.mark.parametrize(("kind", "open_stepper"), [("t5", T5Stepper), ("gpt2", open_causal)])
def test_a_recording_that_is_dropped_is_freed_at_once(
    kind: str, open_stepper: OpenStepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_module, "GraphedStep", Replayed)
    monkeypatch.setattr(fast_module, "KEPT_BYTES", 0)
    engine = FastEngine(policy(kind), open_stepper)
    engine._records = lambda: True
    kept: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        for tokens in (4, 5, 6, 7):
            roll(engine, prompts(kind)[:2], [Sample(2)], tokens)
            kept.append(weakref.ref(list(engine._recorded.values())[-1].stepper))
            assert [loop() is not None for loop in kept[:-2]] == [False] * (len(kept) - 2)
    finally:
        gc.enable()
    assert all(loop() is not None for loop in kept[-2:])


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_caches_of_a_recording_are_counted(kind: str) -> None:
    ours = policy(kind)
    few, more = (make_engine(ours)._loop(ours.encode(prompts(kind)[:2]), (Sample(n),), 8).kept_bytes for n in (1, 3))
    config = ours.model.config
    own = 2 * 2 * 8 * config.hidden_size * config.num_hidden_layers * 4  # keys and values of two rows, fp32
    assert 0 < few < more and more - few == 2 * own


def test_lora_is_in_the_decode_and_off_where_it_is_off() -> None:
    base = policy()
    adapted = copy.deepcopy(base)
    wrapper = add_lora(adapted.model, LoraConfig(rank=4, target_modules=("q", "v", "k", "o", "wi", "wo")))
    lora = Seq2SeqPolicy(adapted.model, adapted.tokenizer, wrapper).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in lora.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    asked = prompts()
    engine = make_engine(lora)
    assert isinstance(engine, FastEngine)
    assert_same(roll(engine, asked, MIXTURES["sample"]), roll(GenerateEngine(lora), asked, MIXTURES["sample"]))
    plain = roll(make_engine(base), asked, MIXTURES["sample"])
    assert not torch.equal(roll(engine, asked, MIXTURES["sample"]).response_ids, plain.response_ids)
    with wrapper.disable_adapter():
        assert_same(roll(engine, asked, MIXTURES["sample"]), plain)


def test_weights_are_read_at_every_decode() -> None:
    ours, other = policy(seed=0), policy(seed=4)
    engine, asked = make_engine(ours), prompts()
    before = roll(engine, asked, [Greedy()])
    ours.model.load_state_dict(other.model.state_dict())
    after = roll(engine, asked, [Greedy()])
    assert_same(after, roll(make_engine(other), asked, [Greedy()]))
    assert not torch.equal(before.response_ids, after.response_ids)


def test_bf16_draws_nearly_the_same_and_scores_in_bf16() -> None:
    """Under autocast a rollout is the same until two tokens lie within bf16's rounding of each other."""
    ours, asked = policy(width=32), prompts(count=5)
    engine = make_engine(ours)
    exact = roll(engine, asked, [Sample(4, temperature=1.0)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = roll(engine, asked, [Sample(4, temperature=1.0)])
        with torch.no_grad():
            scored = ours.logprobs(
                ours.encode(asked), rounded.prompt_index, rounded.response_ids, rounded.response_mask
            )
    first = exact.response_ids[:, 0] == rounded.response_ids[:, 0]
    assert float(first.float().mean()) > 0.7
    gap = (rounded.logprobs - scored.logprobs).abs().sum() / rounded.response_mask.sum()
    assert float(gap) < 0.1
    assert float((rounded.logprobs[first, 0] - exact.logprobs[first, 0]).abs().max()) > 1e-4  # it is bf16


def chi_square(counts: Tensor, expected: Tensor) -> float:
    """The statistic's distance from its mean in standard deviations, over the bins that can occur."""
    possible = expected > 0
    assert not counts[~possible].any()
    statistic = ((counts[possible] - expected[possible]) ** 2 / expected[possible]).sum()
    freedom = int(possible.sum()) - 1
    return (float(statistic) - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("decoding", [Sample(4000, 2.0), Sample(4000, 2.5, top_k=6), Sample(4000, 3.0, top_p=0.8)])
def test_first_tokens_have_the_asked_distribution(decoding: Sample) -> None:
    ours, asked = policy(), prompts()[:1]
    rollout = roll(make_engine(ours), asked, [decoding], tokens=1)
    plain = model("t5")
    with torch.no_grad():
        logits = plain(
            input_ids=torch.tensor([asked[0].input_ids]), decoder_input_ids=torch.tensor([[0]])
        ).logits[0, 0].double() / decoding.temperature  # fmt: skip
    probabilities = logits.softmax(-1)
    if decoding.top_k:
        probabilities[probabilities < probabilities.topk(decoding.top_k).values[-1]] = 0
    if decoding.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        probabilities[order[int((ordered.cumsum(0) < decoding.top_p).sum()) + 1 :]] = 0
    counts = torch.bincount(rollout.response_ids[:, 0], minlength=len(logits)).double()
    # The noise is a fixed function of the seed, so this is no gamble: it holds or it does not.
    assert abs(chi_square(counts, 4000 * probabilities / probabilities.sum())) < 4


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_drawing_from_the_candidates_is_drawing_from_all(top_p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    decoding = Sample(1, temperature=0.8, top_k=20, top_p=top_p)
    logits = torch.randn(300, 500, generator=generator)
    logits[100:200] = logits[100:200].bfloat16().float()
    logits[200:] = (logits[200:] * 4).round() / 4  # many logits equal the twentieth
    ties = ((logits == logits.topk(20).values[:, -1:]).sum(dim=1) > 1).float().mean()
    assert float(ties) > 0.3
    uniform = torch.rand(300, generator=generator, dtype=torch.float64)
    assert torch.equal(draw(logits, decoding, uniform), sample_tokens(warp_logits(logits, decoding), uniform))


def test_an_architecture_without_fast_decoder_falls_back_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    ours = policy("gpt2")
    ours.model.transformer.h[0].mlp.register_forward_hook(lambda m, i, o: o * 1.5)
    engine = make_engine(ours)
    assert isinstance(engine, GenerateEngine)
    for _ in range(2):
        roll(engine, prompts("gpt2"), [Greedy()])
    assert [record.message for record in caplog.records] == [
        "GPT2LMHeadModel has no fast decoder here; responses are drawn by transformers' generate"
    ]


def test_nothing_to_decode_is_an_error() -> None:
    engine = make_engine(policy())
    with pytest.raises(ValueError, match="at least one decoding"):
        roll(engine, prompts(), [])


def favoured(token: int) -> Policy:
    ours = policy()
    ours.model.lm_head.register_forward_hook(
        lambda m, i, o: o.index_add(-1, torch.tensor([token]), torch.full_like(o[..., :1], 1e4))
    )
    return ours


def test_empty_and_endless_responses() -> None:
    empty = roll(make_engine(favoured(1)), prompts(), [Greedy(), Sample(2)])
    assert empty.response_ids.tolist() == [[1]] * 9 and list(empty.texts) == [""] * 9
    endless = roll(make_engine(favoured(7)), prompts(), [Greedy(), Sample(2)], tokens=5)
    assert endless.response_ids.tolist() == [[7] * 5] * 9 and endless.response_mask.all()


def test_an_engine_that_was_made_before_its_policy_moved_records_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = policy("t5")
    engine = FastEngine(ours, T5Stepper)
    assert not engine._records()
    monkeypatch.setattr(type(ours), "device", torch.device("cuda"))
    assert engine._records()
