"""Responses packed behind their prompt: the values, log-probabilities and gradients of every row by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as flex
from families_toy import FAMILIES, batch, family_model, family_policy, transformers_rows
from rl_toy import tokenizer, written_out
from seldom import seldom
from torch import Tensor
from torch._dynamo.utils import counters
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.families import attention, compiled, packed
from finegrained_rlhf.models.families.attention import FLEX_BLOCK, FLEX_OR_SDPA, prefer_flex
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.packed import PackedRows, pack_rows, visible_columns
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel

PACKED = tuple(family for family in FAMILIES if CAUSAL_FAMILIES[family].packed)
PASS_COST = packed.pass_cost
Result = tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs wherever that saves a token, as with FlexAttention: these models are too small for it to pay otherwise."""
    monkeypatch.setattr(packed, "pass_cost", lambda *of: packed.PassCost())


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], Any]:
    """Runs something without packing."""

    def run(work: Callable[[], Any]) -> Any:
        with monkeypatch.context() as changed:
            changed.setattr(packed, "takes_packed", lambda backbone: False)
            return work()

    return run


def lengths_read(backbone: Any) -> list[tuple[int, ...]]:
    """The shapes of the token ids that a backbone is given from now on."""
    shapes: list[tuple[int, ...]] = []
    backbone.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def trained(ours: CausalPolicy, shared: bool = False) -> Any:
    torch.manual_seed(1)
    if shared:
        return SharedTrunkValueModel(ours)
    return SeparateValueModel(family_model(ours.model.config.model_type, seed=5).base_model, ours).eval()


def scored(ours: CausalPolicy, value: Any, order: Tensor | None = None) -> Result:
    """Log-probabilities, entropy and values [R, T] of a batch in any order, and the gradients of a loss on them."""
    asked, rows, ids, mask = batch()
    order = torch.arange(len(rows)) if order is None else order
    rows, ids, mask = rows[order], ids[order], mask[order]
    memory = ours.encode(asked)
    logprobs = ours.logprobs(memory, rows, ids, mask, entropy=True)
    if isinstance(value, SharedTrunkValueModel):
        values = value.from_hidden(ours.hidden(memory, rows, ids)) * mask
    else:
        values = value(memory, rows, ids) * mask
    loss = ((logprobs.logprobs**2).sum() + (values**2).sum()) / mask.sum()
    loss.backward()
    parameters = {**dict(ours.model.named_parameters()), **{f"value.{n}": p for n, p in value.named_parameters()}}
    gradients = {name: p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    for parameter in parameters.values():
        parameter.grad = None
    return logprobs.logprobs.detach(), logprobs.entropy, values.detach(), gradients


def assert_same(one: Result, other: Result) -> None:
    for mine, theirs in zip(one[:3], other[:3], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert one[3].keys() == other[3].keys() and len(one[3]) >= 8
    for name, gradient in one[3].items():
        allowed = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(gradient, other[3][name], atol=allowed, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_and_plain_are_one_function(family: str, plainly: Callable[..., Any]) -> None:
    ours = family_policy(family)
    value, shared = trained(ours), trained(ours, shared=True)
    plain, plain_shared = plainly(lambda: (scored(ours, value), scored(ours, shared)))
    shapes, values_read = lengths_read(ours.model.base_model), lengths_read(value.backbone)
    assert_same(scored(ours, value), plain)
    if family in PACKED:
        assert shapes == values_read == [(3, 11 + 3 * 6)]  # three prompts of 11 tokens at most, 3 responses of 7
    else:
        assert shapes == values_read == [(9, 11 + 7)]
    assert_same(scored(ours, shared), plain_shared)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gpt2"])
def test_an_update_is_that_of_transformers_own_forward(family: str, tied: bool) -> None:
    """By weight copy: gradients, and the weights after one step of the optimizer, row by row without padding."""
    ours, plain = family_policy(family, tied), written_out(family_model(family, tied))
    asked, rows, ids, mask = batch()
    assert (plain.lm_head.weight is plain.get_input_embeddings().weight) == tied
    logprobs = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
    theirs = transformers_rows(plain, asked, rows, ids).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    for model, scores in ((ours.model, logprobs), (plain, theirs * mask)):
        (scores**2).mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    expected = dict(plain.named_parameters())
    for name, parameter in ours.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(parameter, expected[name], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("how", ["lora", "checkpointing", "lora and checkpointing"])
def test_lora_and_gradient_checkpointing(family: str, how: str, plainly: Callable[..., Any]) -> None:
    def built() -> CausalPolicy:
        model, wrapper = family_model(family), None
        if "lora" in how:
            torch.manual_seed(2)
            wrapper = add_lora(model, LoraConfig(rank=2, alpha=4))
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    torch.nn.init.normal_(parameter, std=0.3)
        ours = CausalPolicy(model, tokenizer("gpt2"), wrapper).eval()
        if "checkpointing" in how:
            ours.use_gradient_checkpointing()
        return ours

    ours = built()
    value = trained(ours, shared=True)
    assert_same(scored(ours, value), plainly(lambda: scored(ours, value)))


@pytest.mark.parametrize("rows", [[4, 0, 8, 2, 6, 1, 7, 3, 5], [8, 1, 0, 4, 2]])
def test_rows_in_any_order_and_any_number(rows: list[int], plainly: Callable[..., Any]) -> None:
    ours = family_policy("mistral")
    value = trained(ours)
    plain = plainly(lambda: scored(ours, value, torch.tensor(rows)))
    shapes = lengths_read(ours.model.base_model)
    assert_same(scored(ours, value, torch.tensor(rows)), plain)
    assert len(shapes) == 1 and shapes[0][0] == 3  # packed, although a prompt may have fewer rows than another


def test_dropout_and_single_rows_go_the_plain_way() -> None:
    ours = family_policy("llama")
    asked, rows, ids, _ = batch()
    shapes = lengths_read(ours.model.base_model)
    memory = ours.encode(asked)
    ours.hidden(memory, torch.arange(3), ids[:3])
    ours.train()
    ours.hidden(memory, rows, ids)
    assert shapes == [(3, 18), (9, 18)]
    ours.eval()
    assert ours.hidden(memory, rows, ids[:, :1]).shape == (9, 1, 16)  # nothing but prompts is read
    assert shapes[-1] == (3, 11)
    assert ours.hidden(memory, rows, ids[:, :0]).shape == (9, 0, 16)


def test_rows_by_hand() -> None:
    assert pack_rows([0, 0, 1, 1], 2, 10, 5) == PackedRows([0, 1], 2, [0, 1, 2, 3])
    assert pack_rows([0, 0, 1, 1], 2, 10, 5).in_order
    assert pack_rows([1, 0, 1, 1], 2, 10, 5) == PackedRows([0, 1], 3, [3, 0, 4, 5])  # 2 · (10 + 3 · 4) < 4 · 15
    assert not pack_rows([1, 0, 1, 1], 2, 10, 5).in_order
    assert pack_rows([0, 1], 2, 10, 5) is None  # nothing to share
    assert pack_rows([0, 0, 1, 2, 3], 4, 1, 9) is None  # 4 · (1 + 2 · 8) > 5 · 10: empty slots would cost more
    assert pack_rows([], 0, 0, 0) is None


def test_how_many_share_a_row_by_hand() -> None:
    """Two prompts of 4 tokens with four responses of 3 each: in a row all, two or one; a column 10, a pair 1."""
    counts, cost = [4, 4], packed.PassCost(10.0, 1.0)
    assert cost.packed(2, 12) == 2 * 12 * (10 + 12) == 528
    assert cost.packed(4, 8) == 4 * 8 * (10 + 8) == 576
    assert cost.plain(8, 7) == 8 * 7 * (10 + 7) == 952
    assert packed.packed_slots(counts, 4, 3, cost) == 4
    wide = packed.PassCost(2.0, 1.0)  # 2 · 12 · 14 = 336, 4 · 8 · 10 = 320, and 8 · 7 · 9 = 504
    assert packed.packed_slots(counts, 4, 3, wide) == 2
    assert pack_rows([0, 1, 0, 1, 0, 1, 0, 1], 2, 4, 3, wide) == PackedRows([0, 0, 1, 1], 2, [0, 4, 1, 5, 2, 6, 3, 7])
    assert pack_rows([0] * 4 + [1] * 3, 2, 4, 3, wide) == PackedRows([0, 0, 1, 1], 2, [0, 1, 2, 3, 4, 5, 6])
    assert packed.packed_slots([3, 1], 4, 3, packed.PassCost(0.0, 1.0, causal_skips=True)) is None
    assert packed.columns_of(counts, 4, 3, 2) == 4 * 10 and packed.columns_of(counts, 4, 3, None) == 8 * 7


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_short_prompts_with_many_responses_share_rows_only_as_far_as_it_pays(
    family: str, plainly: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 responses of 24 tokens behind 8: not all in one row of 376 columns; and the function is the same for any."""
    monkeypatch.setattr(packed, "pass_cost", PASS_COST)
    ours = family_policy(family)
    asked, ids = [Prompt("p", "", (5, 6, 7, 8) * 2)], torch.arange(16 * 24).reshape(16, 24) % 20 + 3
    places, mask = torch.zeros(16, dtype=torch.long), torch.ones_like(ids)
    shapes = lengths_read(ours.model.base_model)

    def result() -> tuple[Tensor, Tensor]:
        found = ours.logprobs(ours.encode(asked), places, ids, mask).logprobs
        (found**2).mean().backward()
        embeddings = ours.model.get_input_embeddings().weight
        gradient, embeddings.grad = embeddings.grad, None
        ours.zero_grad()
        return found.detach(), gradient

    plain = plainly(result)
    chosen = result()
    assert shapes == [(16, 32), (16, 32)] and ours.pass_tokens([16], 8, 24) == 16 * 32
    for share, columns in ((packed.PassCost(1.0), 376), (packed.PassCost(400.0, 1.0), 8 + 2 * 23)):
        monkeypatch.setattr(packed, "pass_cost", lambda *of, share=share: share)
        for one, other in zip(result(), plain, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
        assert shapes[-1] == (1 if columns == 376 else 8, columns)
    torch.testing.assert_close(chosen[0], plain[0], atol=0, rtol=0)


def test_what_a_column_sees_by_hand() -> None:
    """A prompt of 3 tokens in 4 columns, two responses of 2 tokens: [a b c pad][d e][f g]."""
    owner = torch.tensor([-1, -1, -1, -1, 0, 0, 1, 1])
    real = torch.tensor([[True, True, True, False, True, True, True, True]])
    positions = torch.tensor([[0, 1, 2, 3, 3, 4, 3, 4]])

    def sees(window: int | None) -> list[str]:
        visible = visible_columns(owner, real, positions, window)
        query, key = torch.arange(8)[:, None], torch.arange(8)[None, :]
        seen = visible(torch.tensor(0), None, query, key)
        return ["".join(name for name, yes in zip("abcPdefg", row, strict=True) if yes) for row in seen.tolist()]

    assert sees(None) == ["a", "ab", "abc", "abcP", "abcd", "abcde", "abcf", "abcfg"]
    assert sees(2) == ["a", "ab", "bc", "cP", "cd", "de", "cf", "fg"]


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """FlexAttention is chosen and traced as on CUDA; what is traced runs plainly: a CPU has no backward kernel."""
    monkeypatch.setattr(packed, "prefer_flex", lambda backbone, device: prefer_flex(backbone, torch.device("cuda")))
    monkeypatch.setattr(flex, "_validate_device", lambda *parts: None)
    monkeypatch.setattr(attention.torch, "compile", partial(torch.compile, backend="eager"))
    attention._compiled.cache_clear()
    attention._say_unfused.cache_clear()
    with torch._dynamo.config.patch(recompile_limit=1):  # is raised by the first compilation
        yield


@pytest.mark.parametrize("family", seldom(["llama", "mistral", "qwen3"], ["mistral"]))
def test_flex_attention_sees_the_same(family: str, monkeypatch: pytest.MonkeyPatch, as_on_cuda: None) -> None:
    monkeypatch.setattr(packed, "prefer_flex", lambda backbone, device: None)
    ours = family_policy(family, num_attention_heads=2)
    asked, rows, ids, mask = batch()
    real = mask.bool()

    def states(precision: torch.dtype | None = None) -> Tensor:
        with torch.no_grad(), torch.autocast("cpu", precision, enabled=precision is not None):
            return ours.hidden(ours.encode(asked), rows, ids)[real].float()

    expected, rounded = states(), states(torch.bfloat16)
    ours.model.config._attn_implementation = FLEX_OR_SDPA
    masks = []
    ours.model.base_model.layers[0].self_attn.register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(type(kwargs["attention_mask"]).__name__), with_kwargs=True
    )
    torch.testing.assert_close(states(), expected, atol=1e-5, rtol=1e-5)
    gap = (states(torch.bfloat16) - expected).abs().max()
    assert gap <= 2 * (rounded - expected).abs().max()
    with torch.no_grad():  # any other mask is SDPA's
        one = ours.hidden(ours.encode(asked[:1]), torch.tensor([0]), ids[:1])
    assert masks[:2] == ["BlockMask"] * 2 and masks[2] != "BlockMask"
    torch.testing.assert_close(one[0][real[0]], expected[: int(real[0].sum())], atol=1e-5, rtol=1e-5)


def _dense(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float | None) -> Tensor:
    """What FlexAttention computes, by a whole mask."""
    seen = flex.create_mask(mask.mask_mod, len(query), None, query.shape[2], key.shape[2], device="cpu")
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=scale, enable_gqa=True
    )


@pytest.mark.parametrize(("family", "blocks"), [("mistral", False), ("qwen3", False), ("qwen3", True)])
def test_a_block_mask_serves_all_passes_over_the_same_rows(
    family: str, blocks: bool, monkeypatch: pytest.MonkeyPatch, as_on_cuda: None
) -> None:
    """Policy and value model, forwards and backwards, compiled or not; other rows have one of their own."""
    plain = family_policy(family)
    expected = scored(plain, trained(plain))
    made: list[tuple[int, int]] = []

    def create(visible: Any, prompts: int, heads: None, queries: int, keys: int, device: Any) -> Any:
        made.append((prompts, queries))
        return flex.create_block_mask(visible, prompts, heads, queries, keys, device=device)

    monkeypatch.setattr(packed, "create_block_mask", create)
    monkeypatch.setattr(attention, "_compiled", lambda *shape: _dense)
    packed._blocks.cache_clear()
    ours = family_policy(family)
    value = trained(ours)
    if blocks:
        monkeypatch.setattr(compiled, "BACKEND", "eager")
        compiled.compiled.cache_clear()
        for part in (ours.model, value):
            compiled.compile_blocks(part)
    for _ in range(2):
        found = scored(ours, value)
        assert ours.model.base_model.config._attn_implementation == FLEX_OR_SDPA
        for one, two in zip(found[:3], expected[:3], strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
    kinds = len(set(ours.model.config.layer_types)) if family == "qwen3" else 1
    assert len(made) == len(set(made)) * kinds == kinds
    ours.hidden(ours.encode(batch()[0][:1]), torch.zeros(2, dtype=torch.long), batch()[2][:2])
    assert len(made) == 2 * kinds
    packed._blocks.cache_clear()


def test_flex_attention_is_chosen_on_cuda_for_models_that_have_it() -> None:
    chosen = {}
    for family in ("llama", "gpt2", "gemma2"):
        backbone = family_policy(family).model.base_model
        prefer_flex(backbone, torch.device("cpu"))
        assert backbone.config._attn_implementation in ("sdpa", "eager")
        prefer_flex(backbone, torch.device("cuda"))
        chosen[family] = backbone.config._attn_implementation
    assert chosen == {"llama": FLEX_OR_SDPA, "gpt2": "sdpa", "gemma2": "eager"}
    assert LlamaForCausalLM._supports_flex_attn


@pytest.mark.slow
def test_models_of_many_shapes_stay_compiled(as_on_cuda: None, caplog: pytest.LogCaptureFixture) -> None:
    """With gradients and without: a graph for one prompt and one for more, whatever the lengths; with a window another.

    (Rows of a single block would be one more.)
    """
    counters.clear()
    for family, heads in (("llama", 2), ("qwen3", 1)):
        ours = family_policy(family, num_key_value_heads=heads)
        seen = lengths_read(ours.model.base_model)
        for count, width in ((1, 45), (3, 45), (2, 90)):
            asked, rows, ids, mask = batch(count=count, width=width)
            memory = ours.encode(asked)
            with torch.no_grad():
                expected = ours.logprobs(memory, rows, ids, mask).logprobs
            torch.testing.assert_close(ours.logprobs(memory, rows, ids, mask).logprobs, expected, atol=1e-5, rtol=1e-5)
        assert [(rows, tokens / FLEX_BLOCK) for rows, tokens in seen] == [(1, 2)] * 2 + [(3, 2)] * 2 + [(2, 3)] * 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert attention._compiled.cache_info().currsize == 4  # two widths of keys, two modes of gradients
    assert counters["stats"]["unique_graphs"] == 2 * (2 + 2 * 2)


def test_attention_that_is_not_compiled_any_more_is_said_once(
    as_on_cuda: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attention, "RECOMPILE_LIMIT", 1)
    ours = family_policy("llama")
    for count in (2, 1, 2, 1):
        asked, rows, ids, mask = batch(count=count)
        with torch.no_grad():
            ours.logprobs(ours.encode(asked), rows, ids, mask)
    warned = [record for record in caplog.records if record.name == attention.__name__]
    assert len(warned) == 1 and "is not compiled any more" in warned[0].message and warned[0].levelno == logging.WARNING
