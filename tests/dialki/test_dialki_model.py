"""DIALKI's model: the original's outputs, what reaches a span, and what must not matter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dialki_toy import dialogue, encoded, passage, save_bert, tiny_dialki, tokenizer, whole_batch
from safetensors.torch import load_file
from torch.nn.functional import pad
from transformers import AutoModel, BertConfig, BertModel, DistilBertConfig, ElectraConfig, RobertaConfig

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.dialki.inputs.batches import DialkiBatch, InputGroup, collate
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.model.config import DialkiConfig
from finegrained_rlhf.dialki.model.heads import MASKED, Contextualizer, HistoryScores, NextScores
from finegrained_rlhf.dialki.model.model import DialkiModel, load_dialki, new_dialki
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialogue.records import Knowledge

GOLDEN = Path(__file__).parents[1] / "golden" / "dialki"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@torch.no_grad()
def scores(model: DialkiModel, batch: DialkiBatch) -> tuple[NextScores, HistoryScores]:
    vectors = model.encode(batch)
    return model.next_scores(vectors, batch), model.history_scores(vectors, batch)


# The original ----------------------------------------------------------------------------------------------------


def original_batch(inputs: dict[str, torch.Tensor]) -> DialkiBatch:
    ids = inputs["input_ids"].flatten(0, 1)
    starts = inputs["question_boundaries"][:, 0, :, 0]
    roles = inputs["type_ids"][:, 0].gather(1, starts.clamp(min=0))
    return DialkiBatch(
        groups=(InputGroup(ids, inputs["attention_mask"].flatten(0, 1), torch.arange(6)),),
        owners=torch.arange(6) // 3,
        places=torch.arange(6) % 3,
        turn_starts=starts.clamp(min=0),
        turn_mask=starts >= 0,
        turn_is_user=roles == 1,
        span_starts=inputs["clss"].flatten(0, 1),
        span_mask=inputs["mask_cls"].flatten(0, 1).bool(),
        passage_mask=torch.ones(2, 3, dtype=torch.bool),
        keys=torch.arange(6),
    )


@pytest.mark.parametrize("parity", [True, False])
def test_golden_outputs_of_the_original(parity: bool) -> None:
    case = json.loads((GOLDEN / "case.json").read_text())
    inputs, expected = ({k: torch.tensor(v) for k, v in case[part].items()} for part in ("inputs", "outputs"))
    encoder = BertModel(BertConfig(**case["config"]), add_pooling_layer=False)
    model = DialkiModel(encoder, None, DialkiConfig(parity=parity)).eval()
    assert encoder.config._attn_implementation == "sdpa"
    weights = {k.replace(".global.", ".whole."): v for k, v in load_file(GOLDEN / "weights.safetensors").items()}
    encoder.load_state_dict({k[8:]: v for k, v in weights.items() if k.startswith("encoder.") and "pooler" not in k})
    model.heads.load_state_dict({k: v for k, v in weights.items() if not k.startswith("encoder.")})
    batch = original_batch(inputs)
    following, history = scores(model, batch)
    real = torch.ones_like(expected["start"], dtype=torch.bool) if parity else inputs["mask_cls"].bool()
    turns = batch.turn_mask[:, None].expand(2, 3, 4).flatten(0, 1)
    for ours, theirs in ((following.begin, "start"), (following.end, "end")):
        assert torch.allclose(ours[real], expected[theirs][real], rtol=1e-5, atol=1e-5)
        assert parity or (ours[~real] == MASKED).all()
    assert torch.allclose(following.passage, expected["relevance"], rtol=1e-5, atol=1e-5)
    for ours, theirs in ((history.begin, "history_start"), (history.end, "history_end")):
        flat = ours.transpose(1, 2).flatten(0, 1)  # [question x passage, turn, span]
        seen = turns[:, :, None] & real.flatten(0, 1)[:, None]
        assert torch.allclose(flat[seen], expected[theirs][seen], rtol=1e-5, atol=1e-5)
    relevance = history.passage.transpose(1, 2).flatten(0, 1)
    assert torch.allclose(relevance[turns], expected["history_relevance"][turns].squeeze(-1), rtol=1e-5, atol=1e-5)


# What reaches a span ---------------------------------------------------------------------------------------------


def test_contextualization_is_the_formula_of_the_thesis() -> None:
    torch.manual_seed(0)
    module = Contextualizer(4, recent=2)
    spans, whole, turns = torch.randn(1, 3, 4), torch.randn(1, 4), torch.randn(1, 5, 4)
    mask = torch.tensor([[True, False, True, True, False]])
    with torch.no_grad():
        found = module(spans, whole, turns, mask, torch.nn.Identity())
        for j in range(3):
            total = spans[0, j].clone()
            for i in (0, 2):  # the two most recent turns of the role
                a = module.span(spans[0, j]) + module.whole(whole[0]) + module.turn(turns[0, i])
                gate = torch.sigmoid(turns[0, i] @ whole[0] + turns[0, i] @ spans[0, j])
                total += torch.relu(a) * gate
            assert torch.allclose(found[0, j], total / total.norm(), atol=1e-6)


def test_which_turns_reach_a_span(bert: Path) -> None:
    model = tiny_dialki(bert)
    _, batch = whole_batch(model, [dialogue(history=(None,) * 7)])
    assert batch.turn_is_user[0].tolist() == [True, False] * 3 + [True]
    with torch.no_grad():
        vectors = model.encode(batch)
        is_user = batch.turn_is_user[batch.owners]

        def contextual(turns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            user, agent = model.heads.contextualize["user"], model.heads.contextualize["agent"]
            rest = (vectors.spans, vectors.whole, turns)
            return user(*rest, is_user, model.heads.dropout), agent(*rest, ~is_user, model.heads.dropout)

        before = contextual(vectors.turns)
        for turn in range(7):
            changed = vectors.turns.clone()
            changed[:, turn] += 1.0
            user, agent = contextual(changed)
            assert torch.equal(user, before[0]) == (turn not in (0, 2))  # users: the two most recent
            assert torch.equal(agent, before[1]) == (turn % 2 == 0)  # agents: all
        assert torch.allclose(before[0].norm(dim=-1), torch.ones(1))


def test_without_contextualization_turns_change_no_span_score(bert: Path) -> None:
    model = tiny_dialki(bert, contextualize=False)
    _, batch = whole_batch(model, [dialogue()])
    with torch.no_grad():
        vectors = model.encode(batch)
        other = replace(vectors, turns=vectors.turns + 1.0)
        assert torch.equal(model.next_scores(vectors, batch).begin, model.next_scores(other, batch).begin)


def test_heads_compute_in_fp32_inside_bf16_autocast(bert: Path) -> None:
    model = tiny_dialki(bert)
    _, batch = whole_batch(model, [dialogue()])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = model.encode(batch)
        inside = model.next_scores(vectors, batch), model.history_scores(vectors, batch)
    assert {t.dtype for t in (vectors.whole, vectors.turns, vectors.spans)} == {torch.float32}
    with torch.no_grad():
        outside = model.next_scores(vectors, batch), model.history_scores(vectors, batch)
    for found, expected in zip(inside, outside, strict=True):
        same(found, expected)
    spans = inside[0].begin[inside[0].span_mask]
    rounded = spans.bfloat16().float()
    assert not torch.equal(spans, rounded)  # bf16 could not hold them


# What must not matter --------------------------------------------------------------------------------------------


def same(first: NextScores | HistoryScores, second: NextScores | HistoryScores) -> None:
    for name in ("passage", "begin", "end"):
        assert torch.allclose(getattr(first, name), getattr(second, name), atol=1e-5), name


def with_padding(model: DialkiModel, batch: DialkiBatch, extra: int) -> DialkiBatch:
    """All inputs as one group, `extra` tokens wider than the longest; more turn and span columns than there are."""
    ids = [row for group in batch.groups for row in group.ids]
    masks = [
        row for group in batch.groups for row in (group.mask if group.mask is not None else torch.ones_like(group.ids))
    ]
    width = max(len(row) for row in ids) + extra
    padded = torch.stack([pad(row, (0, width - len(row)), value=model.pad_id) for row in ids])
    mask = torch.stack([pad(row, (0, width - len(row))) for row in masks])
    wider = {name: pad(getattr(batch, name), (0, 2)) for name in ("turn_starts", "turn_mask", "turn_is_user")}
    rows = torch.cat([group.rows for group in batch.groups])
    return replace(
        batch,
        groups=(InputGroup(padded, mask, rows),),
        span_starts=pad(batch.span_starts, (0, 3)),
        span_mask=pad(batch.span_mask, (0, 3)),
        **wider,
    )


def test_padding_of_tokens_turns_and_spans_changes_nothing(bert: Path) -> None:
    model = tiny_dialki(bert)
    examples = [
        dialogue("a", [passage(0, 2), passage(1, 5), passage(2, 3)]),
        dialogue("b", history=(None,)),
    ]
    chosen, _ = whole_batch(model, examples)
    batch = collate(chosen, model.pad_id, group_size=1)
    assert all(group.mask is None and len(group.ids) == 1 for group in batch.groups)
    following, history = scores(model, batch)
    wide_following, wide_history = scores(model, with_padding(model, batch, extra=9))
    for ours, wide in ((following.begin, wide_following.begin), (following.end, wide_following.end)):
        assert torch.allclose(ours, wide[..., :-3], atol=1e-5) and (wide[..., -3:] == MASKED).all()
    assert torch.allclose(following.passage, wide_following.passage, atol=1e-5)
    turns = history.passage.shape[1]
    real = batch.turn_mask[:, :, None]
    assert torch.allclose(history.passage * real, wide_history.passage[:, :turns] * real, atol=1e-5)
    assert torch.allclose(
        history.begin * real[..., None], wide_history.begin[:, :turns, :, :-3] * real[..., None], atol=1e-5
    )


def test_a_dialogue_alone_or_beside_one_with_more_passages(bert: Path) -> None:
    model = tiny_dialki(bert)
    small = dialogue("a", [passage(0), passage(1)], gold=[Knowledge(1, 0, 0)], history=(None,))
    large = dialogue("b", [passage(i, 4) for i in range(6)])
    alone, _ = scores(model, whole_batch(model, [small])[1])
    beside, _ = scores(model, whole_batch(model, [small, large])[1])
    assert beside.passage.shape == (2, 6) and (beside.passage[0, 2:] == MASKED).all()
    assert torch.allclose(alone.passage, beside.passage[:1, :2], atol=1e-5)
    assert torch.allclose(alone.begin, beside.begin[:1, :2, :3], atol=1e-5)
    assert beside.begin[0, :2, 3:].eq(MASKED).all() and beside.end[0, 2:].eq(MASKED).all()


def test_permuted_passages_permute_the_scores(bert: Path) -> None:
    model = tiny_dialki(bert)
    order = [2, 0, 3, 1]
    here = dialogue(gold=(), history=(None, None, None))
    there = replace(here, passages=tuple(here.passages[i] for i in order))
    (one, past), (two, past_two) = (scores(model, whole_batch(model, [item])[1]) for item in (here, there))
    same(replace(one, passage=one.passage[:, order], begin=one.begin[:, order], end=one.end[:, order]), two)
    permuted = [getattr(past, name)[:, :, order] for name in ("passage", "begin", "end")]
    same(HistoryScores(*permuted), past_two)
    assert len(set(one.passage[0].tolist())) == 4  # the scores differ, so the order is seen


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (RobertaConfig, {"type_vocab_size": 1, "pad_token_id": 0}),
        (DistilBertConfig, {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "dropout": 0.0}),
        (ElectraConfig, {"embedding_size": 8}),
    ],
)
def test_other_encoders(config: type, kind: dict, tmp_path: Path) -> None:
    """Padding changes nothing, zero noise changes nothing, and what was saved is loaded."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings = {"vocab_size": len(tokenizer()), "max_position_embeddings": 256, "initializer_range": 0.3, **kind}
    torch.manual_seed(0)
    AutoModel.from_config(config(**(settings if "dim" in kind else sizes | settings))).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    model = tiny_dialki(tmp_path)
    chosen, _ = whole_batch(model, [dialogue("a", history=(None,)), dialogue("b")])
    batch = collate(chosen, model.pad_id, group_size=1)
    clean, _ = scores(model, batch)
    wide, _ = scores(model, with_padding(model, batch, extra=5))
    assert torch.allclose(clean.passage, wide.passage, atol=1e-5)
    assert torch.allclose(clean.begin, wide.begin[..., :-3], atol=1e-5)
    width = model.encoder.get_input_embeddings().weight.shape[1]
    with torch.no_grad():
        zeros = [torch.zeros(*group.ids.shape, width) for group in batch.groups]
        assert torch.equal(clean.begin, model.next_scores(model.encode(batch, zeros), batch).begin)
        ids = batch.groups[0].ids
        assert torch.allclose(
            model.encoder(input_ids=ids).last_hidden_state,
            model.encoder(inputs_embeds=model.encoder.get_input_embeddings()(ids)).last_hidden_state,
            atol=1e-6,
        )
    model.save(tmp_path / "saved")
    same(scores(load_dialki(tmp_path / "saved"), batch)[0], clean)


# Files -----------------------------------------------------------------------------------------------------------


def test_saved_and_loaded(bert: Path, tmp_path: Path) -> None:
    config = {"contextualize": False, "threshold": 0.25, "search": SearchConfig(2, "logits"), "user_turns": 3}
    for changes in ({}, config):
        model = tiny_dialki(bert, **changes)
        path = tmp_path / str(len(changes))
        path.mkdir()
        model.save(path)
        again = load_dialki(path)
        assert again.config == model.config and not again.training
        ours, theirs = model.state_dict(), again.state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
        _, batch = whole_batch(model, [dialogue()])
        same(scores(model, batch)[0], scores(again, batch)[0])
        assert encoded(model, [dialogue()])[0].context.tolist() == encoded(again, [dialogue()])[0].context.tolist()
    assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}
    assert "pooler" not in "".join(ours)


def test_role_tokens_are_added_and_the_limit_is_the_encoders(bert: Path) -> None:
    model = new_dialki(bert, DialkiConfig(inputs=InputConfig(512, 60)))
    assert model.config.inputs.max_length == 256
    rows = model.encoder.get_input_embeddings().weight.shape[0]
    assert rows == len(model.tokenizer) and model.tokenizer.tokenize(" a<user> b").count("<user>") == 1


def test_what_is_no_dialki_is_one_clear_error(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no dialki.json"):
        load_dialki(bert)
    with pytest.raises(ModelError, match="no model here"):
        load_dialki(tmp_path)
    tiny_dialki(bert).save(tmp_path)
    record = json.loads((tmp_path / "dialki.json").read_text())
    (tmp_path / "dialki.json").write_text(json.dumps({**record, "contextualize": False}))
    with pytest.raises(ModelError, match="not the heads of this model"):
        load_dialki(tmp_path)
    (tmp_path / "dialki.json").write_text(json.dumps({"inputs": {}}))
    with pytest.raises(ModelError, match="not a DIALKI record"):
        load_dialki(tmp_path)
