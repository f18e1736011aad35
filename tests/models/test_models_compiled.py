"""Compiled blocks compute what blocks do, one graph for all of a kind, and stay out where something else happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from families_toy import batch, family_policy
from fused_toy import away, gradients, model, states
from seldom import seldom
from torch import Tensor
from torch._dynamo.utils import counters

from finegrained_rlhf.core.records import Greedy
from finegrained_rlhf.models.families import compiled, fused, packed
from finegrained_rlhf.models.families.compiled import CompiledBlock, compile_blocks
from finegrained_rlhf.rollout import make_engine

REAL = [pytest.param("inductor", marks=pytest.mark.slow)]
"""Compiles for minutes; `eager` traces alike and runs what it traced."""
ORDER = 3e-6
"""Of gradients in fp32 that are summed in another order, relative."""


@pytest.fixture(params=["eager", *REAL])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(compiled, "BACKEND", request.param)
    torch._dynamo.reset()
    counters.clear()
    compiled.compiled.cache_clear()
    yield request.param
    compiled.compiled.cache_clear()


def both(gated: bool) -> tuple[Any, Any]:
    """The same fused T5, with and without compiled blocks."""
    plain, other = model(gated), model(gated)
    for of in (plain, other):
        fused.fuse(of)
    compile_blocks(other)
    return plain, other


def graphs() -> int:
    """How many were made since the last time, none of which was broken off."""
    made = counters["stats"]["unique_graphs"]
    assert not counters["graph_break"]
    counters.clear()
    return made


@pytest.mark.parametrize("gated", seldom([False, True], [False]))
def test_t5_s_blocks(gated: bool, backend: str) -> None:
    """Two layers each of encoder and decoder; then other weights."""
    plain, other = both(gated)
    exact = gradients(plain, False)
    assert away(gradients(other, False), exact) < ORDER
    assert graphs() == 2
    torch.testing.assert_close(states(other, False), states(plain, False), rtol=1e-5, atol=1e-5)
    assert away(gradients(other, True), exact) < 1.2 * away(gradients(plain, True), exact)
    graphs()
    for of in (plain, other):
        with torch.no_grad():
            for number, parameter in enumerate(of.parameters()):
                parameter.mul_(1.0 + number % 3 / 4)
    assert away(states(other, True), states(plain, True)) < 0.02
    assert away(gradients(other, False), gradients(plain, False)) < ORDER
    assert graphs() == 0


def causal(of: Any, in_bf16: bool, prompts: int, tokens: int) -> Tensor:
    """States of two responses each to prompts of so many tokens, the last one shorter."""
    random = torch.Generator().manual_seed(1)
    ids, responses = (torch.randint(3, 24, shape, generator=random) for shape in ((prompts, tokens), (2 * prompts, 6)))
    lengths = [tokens] * (prompts - 1) + [tokens - 3]
    mask = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
    rows = torch.arange(prompts).repeat_interleave(2)
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        return packed.causal_states(of, ids, mask, rows, responses, 0, lengths).float()


@pytest.mark.parametrize("family", seldom(["llama", "gemma2", "gpt2", "qwen3"], ["llama"]))
def test_decoder_only_blocks(family: str, backend: str) -> None:
    """Gradients, and passes over more and longer prompts, by the same graphs."""
    deep: dict[str, Any] = {"num_hidden_layers": 4}
    if family in ("gemma2", "qwen3"):
        deep["layer_types"] = ["sliding_attention", "full_attention"] * 2
    plain, other = (family_policy(family, **deep).model.base_model for _ in range(2))
    other.load_state_dict(plain.state_dict())
    for of in (plain, other):
        fused.fuse(of)
    compile_blocks(other)
    found = []
    for of in (plain, other):
        hidden = causal(of, False, 2, 9)
        (hidden * torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in of.parameters() if p.grad is not None]))
    assert away(found[1], found[0]) < ORDER
    assert graphs() in (1, 2)  # of four layers: with a window and without
    torch.testing.assert_close(causal(other, False, 3, 14), causal(plain, False, 3, 14), rtol=1e-5, atol=1e-5)
    assert graphs() == 0
    exact = causal(plain, False, 2, 9)
    assert away(causal(other, True, 2, 9), exact) < 1.2 * away(causal(plain, True, 2, 9), exact)


def _layers(of: Any) -> list[Any]:
    return [part for part in of.modules() if isinstance(part, CompiledBlock)]


def test_blocks_are_compiled_once_and_called_by_their_names() -> None:
    other = model()
    names, kinds = list(other.state_dict()), [type(block).__name__ for block in other.encoder.block]
    compile_blocks(other)
    once = [type(block) for block in other.encoder.block]
    compile_blocks(other)
    assert once == [type(block) for block in other.encoder.block]
    assert (list(other.state_dict()), [kind.__name__ for kind in once]) == (names, kinds)


def test_dropout_and_a_cache_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compiled", lambda function: pytest.fail("was compiled"))
    t5, llama = model(), family_policy("llama").model
    for of in (t5, llama):
        compile_blocks(of)
    ids = torch.full((1, 5), 7)
    llama.generate(ids, max_new_tokens=3, do_sample=False)
    llama.train()(ids, use_cache=False)
    t5.train()(input_ids=ids, decoder_input_ids=ids)
    with fused.unfused(llama.eval()):
        llama(ids, use_cache=False)
        assert not _layers(llama)
    assert _layers(llama)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_decoding_is_not_compiled(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "compiled", lambda function: pytest.fail("was compiled"))
    plain, other = family_policy(family), family_policy(family)
    other.model.load_state_dict(plain.model.state_dict())
    compile_blocks(other.model)
    drawn = []
    for of in (plain, other):
        engine = make_engine(of)
        drawn.append(engine.decode(engine.encode(batch()[0]), [Greedy()], max_new_tokens=4).response_ids)
    assert torch.equal(*drawn)


def test_gradient_checkpointing_computes_compiled_blocks_again(backend: str) -> None:
    plain, other = both(gated=False)
    for block in (*other.encoder.block, *other.decoder.block):
        block.gradient_checkpointing = True
    assert away(gradients(other, False), gradients(plain, False)) < ORDER
    assert 2 <= graphs() <= 4


_PASSES = """
import json, sys
sys.path[:0] = sys.argv[1:]
from fused_toy import gradients, model
from torch._dynamo.utils import counters
from finegrained_rlhf.models.families import fused
from finegrained_rlhf.models.families.compiled import compile_blocks
other = model()
fused.fuse(other)
compile_blocks(other)
gradients(other, False)
print(json.dumps(counters["inductor"]))
"""


@pytest.mark.slow
def test_another_process_finds_what_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", _PASSES, str(Path(__file__).parents[1] / "helpers")]
    first, second = (json.loads(subprocess.check_output(command, text=True).splitlines()[-1]) for _ in range(2))
    assert first.get("fxgraph_cache_miss", 0) >= 4 and not first.get("fxgraph_cache_hit")
    assert second.get("fxgraph_cache_hit", 0) >= 4 and not second.get("fxgraph_cache_miss")
