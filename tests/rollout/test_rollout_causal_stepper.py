"""The decoder-only stepper against transformers' full forward pass over each row alone, without padding or cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from families_toy import family_policy
from rl_toy import model, policy, prompts, sharpen, tokenizer
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import GPT2Config, GPT2LMHeadModel

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.rollout.steppers.base import Stepper
from finegrained_rlhf.rollout.steppers.causal import CausalStepper, open_causal, supports_causal

STEPS = 8
ASKED = prompts("gpt2", 5)
ONE_TOKEN = [Prompt(f"q{i}", "", (i,)) for i in (7, 9)]


def answers(rows: int, steps: int = STEPS, seed: int = 0) -> Tensor:
    """Random response ids [rows, steps]."""
    return torch.randint(3, len(tokenizer("gpt2")), (rows, steps), generator=torch.Generator().manual_seed(seed))


def alone(ours: Policy, prompt: Prompt, answer: Tensor) -> Tensor:
    """transformers' logits [T, V] for each token of one answer [T], in one pass over prompt and answer."""
    ids = torch.tensor([[*prompt.input_ids, *answer.tolist()]])
    with torch.no_grad():
        return ours.model(input_ids=ids).logits[0, len(prompt.input_ids) - 1 : -1]


def expected(ours: Policy, asked: list[Prompt], ids: Tensor) -> Tensor:
    """`alone` [R, T, V] for rows [R, T] of R / P answers a prompt."""
    samples = len(ids) // len(asked)
    return torch.stack([alone(ours, asked[row // samples], answer) for row, answer in enumerate(ids)])


def walk(stepper: Stepper, ids: Tensor, start: int = 0, stop: int = STEPS, window: int | None = None) -> Tensor:
    """The stepper's logits [R, stop − start, V] while it is fed the answers [R, T]; `window` None takes no spare."""
    logits = []
    for position in range(start, stop):
        tokens = stepper.first_tokens if position == 0 else ids[:, position - 1]
        logits.append(stepper.logits(tokens, torch.tensor([position]), window or position + 1))
    return torch.stack(logits, dim=1)


def check(ours: Policy, asked: list[Prompt] = ASKED, samples: int = 2, reference: Policy | None = None) -> None:
    """Every logit of a walk equals the reference's; `ours` itself unless another is named."""
    assert supports_causal(ours)
    ids = answers(len(asked) * samples)
    logits = walk(open_causal(ours, ours.encode(asked), samples, STEPS), ids)
    close(logits, expected(reference or ours, asked, ids))


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def built(**settings: object) -> CausalPolicy:
    """A policy of three layers with these settings in its configuration."""
    torch.manual_seed(0)
    shape = {"vocab_size": len(tokenizer("gpt2")), "n_positions": 64, "n_embd": 24, "n_layer": 3, "n_head": 2}
    config = GPT2Config(**{**shape, "eos_token_id": 1, "bos_token_id": 3, **settings})
    return CausalPolicy(sharpen(GPT2LMHeadModel(config), 0), tokenizer("gpt2")).eval()


def with_lora(*targets: str) -> CausalPolicy:
    """A policy whose adapters say something (B starts at 0)."""
    ours = model("gpt2")
    wrapped = add_lora(ours, LoraConfig(rank=2, alpha=6, target_modules=targets or None))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return CausalPolicy(ours, tokenizer("gpt2"), adapter=wrapped).eval()


@pytest.mark.parametrize("window", [None, STEPS])
@pytest.mark.parametrize("samples", [1, 3])
def test_every_step_of_every_row_equals_transformers(samples: int, window: int | None) -> None:
    ours = policy("gpt2")
    assert sorted(len(prompt.input_ids) for prompt in ASKED)[0] == 1
    stepper = open_causal(ours, ours.encode(ASKED), samples, STEPS)
    assert stepper.first_tokens.tolist() == [p.input_ids[-1] for p in ASKED for _ in range(samples)]
    for seed in (0, 1):  # the second walk meets a cache full of the first
        ids = answers(len(ASKED) * samples, seed=seed)
        theirs = expected(ours, ASKED, ids)
        close(walk(stepper, ids, window=window), theirs)
    assert theirs.std() > 1  # far from uniform: an error in any layer shows


@pytest.mark.parametrize("samples", [1, 3])
def test_prompts_of_one_token_have_no_prefix(samples: int) -> None:
    check(policy("gpt2"), ONE_TOKEN, samples)


def kind_of(name: str) -> CausalPolicy:
    """GPT-2, or a tiny model of another family."""
    return built() if name == "gpt2" else family_policy(name)


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_kept_rows_go_on_as_if_nothing_had_happened(kind: str) -> None:
    ours = kind_of(kind)
    asked = [ASKED[0], *ONE_TOKEN, *ASKED[2:4]]
    ids = answers(len(asked) * 3)
    theirs = expected(ours, asked, ids)
    stepper = open_causal(ours, ours.encode(asked), 3, STEPS)
    walk(stepper, ids, stop=3)
    rows = torch.tensor([0, 2, 4, 5, 9, 10])  # two of each of the prompts 0, 1 and 3
    stepper.keep(torch.tensor([0, 1, 3]), rows)
    assert stepper.first_tokens.tolist() == [asked[row // 3].input_ids[-1] for row in rows]
    close(walk(stepper, ids[rows], 3, 5), theirs[rows, 3:5])
    stepper.keep(torch.tensor([1, 2]), torch.tensor([3, 4]))  # prompts 1 and 3: the longest is gone
    close(walk(stepper, ids[rows[3:5]], 5, 7), theirs[rows[3:5], 5:7])
    stepper.keep(torch.tensor([0]), torch.tensor([0]))  # a prompt of one token: no prefix is left
    close(walk(stepper, ids[rows[3:4]], 7, 8, window=STEPS), theirs[rows[3:4], 7:8])


@pytest.mark.parametrize(
    "settings",
    [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"activation_function": "relu", "n_inner": 20, "layer_norm_epsilon": 0.1},
        {"tie_word_embeddings": False, "n_layer": 1},
    ],
)
def test_the_settings_of_gpt2(settings: dict[str, object]) -> None:
    check(built(**settings))


@pytest.mark.parametrize("targets", [(), ("c_attn", "c_fc", "c_proj", "lm_head")])
def test_adapters_are_added_in_and_left_out_when_off(targets: tuple[str, ...]) -> None:
    ours = with_lora(*targets)
    assert sum(".lora_B" in name for name, _ in ours.model.named_parameters()) == (9 if targets else 2)
    ids = answers(len(ASKED))
    assert (expected(ours, ASKED, ids) - expected(policy("gpt2"), ASKED, ids)).abs().max() > 0.1
    check(ours)
    with ours.adapter.disable_adapter():
        check(ours, reference=policy("gpt2"))
    check(ours)


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", ["autocast", "bf16 weights", "LoRA", "hooked head"])
def test_bf16_is_as_close_to_fp32_as_transformers_is(kind: str) -> None:
    """Rounding falls elsewhere (scores, the two sums of a step; LoRA is rounded with the weight it is added to), so
    the two bf16 results differ, but by no more than either differs from fp32: their errors against it have the same
    size on average (within a third), and their greatest difference is below the sum of two errors of the greatest size.
    """
    ours = with_lora() if kind == "LoRA" else policy("gpt2", width=32)
    if kind == "hooked head":
        ours.model.lm_head.register_forward_hook(lambda module, inputs, output: 2 * output)
    ids = answers(len(ASKED) * 3)
    exact = expected(ours, ASKED, ids)
    if kind == "bf16 weights":
        ours = ours.to(torch.bfloat16)
    with nullcontext() if kind == "bf16 weights" else bf16():
        theirs = expected(ours, ASKED, ids)
        stepper = open_causal(ours, ours.encode(ASKED), 3, STEPS)
    logits = walk(stepper, ids)  # outside: the precision is that of opening
    summed_in_fp32 = kind in ("autocast", "LoRA")  # by a head that is a linear layer, under autocast
    assert theirs.dtype == torch.bfloat16 and logits.dtype == (torch.float32 if summed_in_fp32 else torch.bfloat16)
    error = (theirs - exact).abs()
    assert error.mean() > 1e-3
    assert (logits - exact).abs().mean() < 4 / 3 * error.mean()
    assert (logits.float() - theirs.float()).abs().max() < 2 * error.max()
    with bf16():
        assert torch.equal(walk(stepper, ids), logits)


def test_an_fp32_stepper_stays_fp32_under_autocast() -> None:
    ours = policy("gpt2")
    ids = answers(len(ASKED))
    stepper = open_causal(ours, ours.encode(ASKED), 1, STEPS)
    with bf16():
        logits = walk(stepper, ids)
    close(logits, expected(ours, ASKED, ids))


@pytest.mark.parametrize(
    "kind", [pytest.param("gpt2", marks=pytest.mark.slow), "gemma2", pytest.param("qwen3", marks=pytest.mark.slow)]
)
def test_one_recording_serves_every_position(kind: str) -> None:
    """What a CUDA graph needs: the operations recorded at position 0, with nothing read back from a tensor, are right
    at all others."""
    ours = kind_of(kind)
    ids = answers(len(ASKED) * 3)
    stepper = open_causal(ours, ours.encode(ASKED), 3, STEPS)

    def step(tokens: Tensor, position: Tensor) -> Tensor:
        return stepper.logits(tokens, position, STEPS)

    recorded = make_fx(step)(stepper.first_tokens, torch.tensor([0]))
    fed = torch.cat([stepper.first_tokens[:, None], ids[:, :-1]], dim=1)
    with torch.no_grad():
        logits = [recorded(fed[:, position], torch.tensor([position])) for position in range(STEPS)]
    close(torch.stack(logits, dim=1), expected(ours, ASKED, ids))


def test_the_cache_of_a_prompt_is_held_once() -> None:
    ours = policy("gpt2")
    memory = ours.encode(ASKED)

    def numbers(stepper: CausalStepper) -> int:
        return sum(t.numel() for layer in stepper._cache.layers.values() for t in vars(layer).values())

    one, two, three = (numbers(open_causal(ours, memory, samples, STEPS)) for samples in (1, 2, 3))
    rows = 2 * 2 * len(ASKED) * STEPS * 16  # layers, keys and values, rows, tokens, width
    assert two - one == three - two == rows
    assert one - rows == 2 * 2 * len(ASKED) * (max(len(p.input_ids) for p in ASKED) - 1) * 16


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "adapters"])
def test_reloading_reads_weights_and_prompts_into_the_same_tensors(kind: str) -> None:
    ours = with_lora("c_attn", "c_fc", "lm_head") if kind == "adapters" else kind_of(kind)
    first, second = [ASKED[0], ASKED[2]], [Prompt("new", "", ASKED[0].input_ids[::-1]), ASKED[1]]
    stepper = open_causal(ours, ours.encode(first), 2, STEPS)
    ids = answers(4)
    walk(stepper, ids, window=STEPS)

    def tensors() -> list[Tensor]:
        caches = [t for layer in stepper._cache.layers.values() for t in vars(layer).values()]
        weights = [plain.weight for _, plain in stepper._copy._linear]
        return [stepper.first_tokens, stepper._offsets, stepper._cache.lengths, *caches, *weights]

    places = [t.data_ptr() for t in tensors()]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in ours.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    stepper.reload(ours.encode(second))
    logits = walk(stepper, ids, window=STEPS)
    close(logits, expected(ours, second, ids))
    assert torch.equal(logits, walk(open_causal(ours, ours.encode(second), 2, STEPS), ids, window=STEPS))
    assert places == [t.data_ptr() for t in tensors()]


def test_the_copy_shares_the_weights_and_leaves_the_policy_as_it_is() -> None:
    ours = built(resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train()
    modules = [(module, set(vars(module)), module.training) for module in ours.modules()]
    stepper = open_causal(ours, ours.encode(ASKED), 1, STEPS)
    ids = answers(len(ASKED))
    logits = walk(stepper, ids)
    assert all(module.training is before and set(vars(module)) == names for module, names, before in modules)
    assert ours.model.config._attn_implementation == "sdpa"
    close(logits, expected(ours.eval(), ASKED, ids))  # dropout was off in the stepper
    owned = {p.data_ptr() for p in ours.model.parameters()}
    theirs = [*stepper._copy.policy.parameters(), *(plain.weight for _, plain in stepper._copy._linear)]
    assert {t.data_ptr() for t in theirs} <= owned


def test_a_changed_head_is_called() -> None:
    ours = policy("gpt2")
    ours.model.lm_head.register_forward_hook(lambda module, inputs, output: output.clamp(max=1))
    check(ours)

    class Doubled(CausalPolicy):
        def head(self, hidden: Tensor) -> Tensor:
            return 2 * super().head(hidden)

    doubled = Doubled(model("gpt2"), tokenizer("gpt2"))
    ids = answers(len(ASKED))
    logits = walk(open_causal(doubled, doubled.encode(ASKED), 1, STEPS), ids)
    close(logits, 2 * expected(doubled, ASKED, ids))


def hooked() -> Policy:
    ours = policy("gpt2")
    ours.model.transformer.h[1].mlp.register_forward_hook(lambda module, inputs, output: 2 * output)
    return ours


def stretched(kind: str) -> Policy:
    """Rotary positions whose frequencies depend on the longest row."""
    rope = {"rope_type": kind, "rope_theta": 10_000.0, "factor": 2.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 8}
    return family_policy("llama", rope_parameters=rope, max_position_embeddings=64)


def patched() -> Policy:
    ours = policy("gpt2")
    mlp = ours.model.transformer.h[0].mlp
    mlp.forward = lambda states: states
    return ours


def with_dora() -> Policy:
    """DoRA: an adapter that is more than an added matrix."""
    import peft

    ours = model("gpt2")
    wrapped = peft.get_peft_model(ours, peft.LoraConfig(use_dora=True, task_type="CAUSAL_LM"))
    return CausalPolicy(ours, tokenizer("gpt2"), adapter=wrapped)


@pytest.mark.parametrize(
    "build",
    [
        lambda: policy("t5"),
        hooked,
        patched,
        with_dora,
        lambda: built(reorder_and_upcast_attn=True),
        lambda: built(add_cross_attention=True),
        lambda: stretched("dynamic"),
        lambda: stretched("longrope"),
        lambda: family_policy("gpt_neo"),
        lambda: family_policy("qwen3_moe"),
    ],
)
def test_what_the_stepper_does_not_follow_it_does_not_serve(build: Callable[[], Policy]) -> None:
    assert supports_causal(policy("gpt2"))
    ours = build()
    assert not supports_causal(ours)
    with pytest.raises(ModelError, match="does not serve"):
        open_causal(ours, ours.encode(prompts("gpt2")), 1, STEPS)


def test_prompt_and_response_must_fit_the_positions() -> None:
    ours = policy("gpt2")
    long = [Prompt("long", "", tuple(range(3, 31)) * 2), ASKED[1]]
    assert len(long[0].input_ids) + STEPS == 64
    check(ours, long)
    with pytest.raises(ModelError, match=r"56 tokens and a response may have 9, together 65, .* 64 positions"):
        open_causal(ours, ours.encode(long), 1, STEPS + 1)
