"""Tables of positions (GPT-2, GPT-Neo) and of embeddings: what fits is computed, what does not is one error."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from families_toy import family_model, family_policy, transformers_rows
from rl_toy import needs_continuous, prompts, tokenizer
from seq2seq_toy import seq2seq_model

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.families.causal import check_positions, position_rows
from finegrained_rlhf.models.logprobs import chosen_logprobs
from finegrained_rlhf.models.policy import CausalPolicy, Policy, Seq2SeqPolicy
from finegrained_rlhf.models.value import SeparateValueModel
from finegrained_rlhf.rollout import make_engine

ROWS = 16
TABLE: dict[str, dict[str, Any]] = {"gpt2": {"n_positions": ROWS}, "gpt_neo": {"max_position_embeddings": ROWS}}


@pytest.mark.parametrize("samples", [1, 2])
def test_texts_that_end_at_the_last_position_among_shorter_ones(samples: int) -> None:
    """The longest prompt has 11 tokens, so its response has 5; others have up to 12, and its padding ends behind the
    table."""
    ours = family_policy("gpt2", **TABLE["gpt2"])
    value = SeparateValueModel(family_model("gpt2", seed=5, **TABLE["gpt2"]).base_model, ours).eval()
    asked = prompts("gpt2", 3)
    lengths = torch.tensor([5, 12, 10]).repeat_interleave(samples)
    assert [len(prompt.input_ids) for prompt in asked] == [11, 1, 6]
    rows = torch.arange(3).repeat_interleave(samples)
    ids = torch.randint(3, len(tokenizer("gpt2")), (len(rows), 12), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(12) < lengths[:, None]).long()
    with torch.no_grad():
        found = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
        values = value(ours.encode(asked), rows, ids)
        for row in range(len(rows)):
            kept = slice(row, row + 1), slice(0, int(lengths[row]))
            logits = transformers_rows(ours.model, [asked[int(rows[row])]], torch.tensor([0]), ids[kept])[0]
            expected = chosen_logprobs(logits, ids[kept][0])
            torch.testing.assert_close(found[kept][0], expected, atol=1e-5, rtol=0)
            alone = value(ours.encode([asked[int(rows[row])]]), torch.tensor([0]), ids[kept])
            torch.testing.assert_close(values[kept], alone, atol=1e-5, rtol=0)


def test_gpt_neo_masks_by_columns() -> None:
    ours = family_policy("gpt_neo", **TABLE["gpt_neo"])
    ids = torch.full((3, 6), 5)
    with pytest.raises(ModelError, match=r"have 17 tokens together, but GPT-Neo masks by columns and has 16"):
        ours.logprobs(ours.encode(prompts("gpt2", 3)), torch.arange(3), ids, torch.ones_like(ids))


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt2", "generate"), pytest.param("gpt2", "continuous", marks=needs_continuous), ("gpt_neo", "auto")],
)
def test_no_engine_decodes_behind_the_table(family: str, kind: Any) -> None:
    engine = make_engine(family_policy(family, **TABLE[family]), kind)
    memory = engine.encode(prompts("gpt2", 3))
    assert engine.decode(memory, [Sample(2, 1.0)], max_new_tokens=5).response_ids.shape[0] == 6
    with pytest.raises(ModelError, match=rf"have 17 tokens together, but this {family} model has 16 positions"):
        engine.decode(memory, [Sample(2, 1.0)], max_new_tokens=6)


def test_rotary_positions_have_no_table() -> None:
    config = family_model("llama", max_position_embeddings=ROWS).config
    assert position_rows(config) is None
    check_positions(config, 10 * ROWS)
    check_positions(seq2seq_model("bart").config, 10 * ROWS)


def changed_tokenizer(kind: str, **tokens: str) -> Any:
    found = copy.deepcopy(tokenizer(kind))
    found.add_special_tokens(tokens)
    return found


def test_control_tokens_have_embeddings() -> None:
    """A padding token that was added to a tokenizer whose model was not resized."""
    model = family_model("llama")
    rows = model.config.vocab_size
    with pytest.raises(ModelError, match=f"the padding token has id {rows}, but the model has {rows} embeddings"):
        CausalPolicy(model, changed_tokenizer("gpt2", pad_token="[PAD]"))
    model.generation_config.eos_token_id = None
    with pytest.raises(ModelError, match=f"the end-of-sequence token has id {rows}, but"):
        CausalPolicy(model, changed_tokenizer("gpt2", eos_token="[END]"))
    bart = seq2seq_model("bart")
    bart.generation_config.forced_bos_token_id = 10**6
    with pytest.raises(ModelError, match="the token that the decoder starts with has id 1000000, but"):
        Seq2SeqPolicy(bart, tokenizer())


def test_a_value_model_looks_back_only() -> None:
    from transformers import BertConfig, BertModel, OPTConfig, OPTModel

    ours: Policy = family_policy("llama")
    sizes: dict[str, Any] = {
        "vocab_size": len(ours.tokenizer),
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    bert = BertModel(BertConfig(**sizes, intermediate_size=8))
    opt = OPTModel(OPTConfig(**sizes, word_embed_proj_dim=8, ffn_dim=8, bos_token_id=0, eos_token_id=1))
    gemma = family_model("gemma").base_model
    gemma.config.use_bidirectional_attention = True
    for backbone in (bert, opt, gemma):
        with pytest.raises(ModelError, match=f"a value model of type '{backbone.config.model_type}' is not known to"):
            SeparateValueModel(backbone, ours)
