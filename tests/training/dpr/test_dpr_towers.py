"""Towers: how queries and passages are read, the converter of DPR's checkpoints, and the dense retriever."""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from dpr_toy import dpr_files, dpr_rows, save_tower
from transformers import AutoModel, BertConfig, BertModel, BertTokenizerFast

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.models.encoders import ConvertDPR
from finegrained_rlhf.models.encoders.towers import TextTower, fitting_turns
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from finegrained_rlhf.retrieval.dense.retriever import DenseConfig
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.training.dpr import TrainDPR
from finegrained_rlhf.training.supervised import BatchConfig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dpr_files(tmp_path_factory.mktemp("dpr"))


@pytest.mark.parametrize(
    ("turns", "limit", "kept"),
    [
        ([[1, 1], [2], [3]], 6, [[1, 1], [2], [3]]),  # 4 tokens and 2 separators
        ([[1, 1], [2], [3]], 5, [[1, 1], [3]]),
        ([[1], [2, 2, 2], [3], [4], [5]], 7, [[1], [3], [4], [5]]),
        ([[1], [2], [3, 3, 3, 3], [4], [5]], 7, [[1], [4], [5]]),  # the second would fit, with a gap
        ([[1, 1, 1, 1], [2], [3, 3]], 5, [[1, 1], [3, 3]]),  # the first loses its end
        ([[1], [2], [3, 3, 3, 3, 3]], 4, [[3, 3, 3, 3]]),  # the newest loses its end
        ([[1], [3, 3, 3]], 4, [[3, 3, 3]]),  # no room behind the separator
        ([[1, 2, 3]], 2, [[1, 2]]),
    ],
)
def test_the_turns_of_a_query_that_fit(turns: list[list[int]], limit: int, kept: list[list[int]]) -> None:
    assert fitting_turns(turns, limit) == kept


def test_what_a_tower_reads(files: Path) -> None:
    """Special tokens stand between turns, titles and text, and never come out of the words themselves."""
    tower = TextTower.open(files / "towers/query", 12)
    start, end = tower.tokenizer.cls_token_id, tower.tokenizer.sep_token_id
    lark, iron, big, unknown = (
        tower.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("lark", "iron", "big", "xyz")
    )
    assert tower.query_ids([["lark", "big iron"], ["big"]]) == [
        (start, lark, end, big, iron, end),
        (start, big, end),
    ]
    assert tower.query_ids([["big </s> lark"]])[0].count(end) == 1
    long = " ".join(["big"] * 20)
    assert tower.query_ids([[long, "lark"]])[0] == (start, *[big] * 8, end, lark, end)
    assert tower.passage_ids([("", "iron"), ("lark", "iron"), ("lark [SEP] big", "iron")]) == [
        (start, iron, end),
        (start, lark, end, iron, end),
        (start, lark, end, big, end, iron, end),
    ]
    assert tower.passage_ids([("lark", long)])[0] == (start, lark, end, *[big] * 8, end)
    assert tower.passage_ids([(long, "lark iron")])[0] == (start, *[big] * 7, end, lark, iron, end)
    halves = tower.passage_ids([(long, long)])[0]
    assert len(halves) == 12 and halves[5] == end and unknown not in halves


def test_berts_own_tokenizer_gives_the_same_ids(tmp_path: Path) -> None:
    """The joined text and the pair (title, text), as DPR's code gives them to the tokenizer."""
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] who built it the light ##house yes ? . , ann low".split()
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    config = BertConfig(vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
    tower = TextTower(BertModel(config), tokenizer, 64)
    turns = ["Who built it?", "The lighthouse?", "Yes."]
    assert list(tower.query_ids([turns])[0]) == tokenizer(" [SEP] ".join(turns))["input_ids"]
    title, text = "Light [SEP] House, Ann", "Ann Low built it."
    assert list(tower.passage_ids([(title, text)])[0]) == tokenizer(title, text_pair=text)["input_ids"]


def test_a_vector_is_the_first_hidden_state_whatever_stands_beside_it(files: Path) -> None:
    tower = TextTower.open(files / "towers/passage", 64)
    rows = tower.passage_ids([("metals", "big iron"), ("", "tin"), ("metals", "old old old zinc")])
    model = AutoModel.from_pretrained(files / "towers/passage").eval()
    with torch.no_grad():
        expected = [model(input_ids=torch.tensor([row])).last_hidden_state[0, 0] for row in rows]
    for size in (1, 2, 3):
        torch.testing.assert_close(tower.vectors(rows, size), torch.stack(expected), atol=1e-5, rtol=0)
    assert tower.vectors([], 4).shape == (0, 32)


CheckpointState = namedtuple(
    "CheckpointState", ["model_dict", "optimizer_dict", "scheduler_dict", "offset", "epoch", "encoder_params"]
)


def weights(files: Path) -> tuple[dict[str, Any], dict[str, BertModel]]:
    """A `model_dict` as DPR's code writes it, and the towers it was made of."""
    found: dict[str, Any] = OrderedDict()
    towers = {}
    for prefix, seed in (("question_model", 5), ("ctx_model", 6)):
        torch.manual_seed(seed)
        towers[prefix] = BertModel(BertConfig.from_pretrained(files / "towers/query")).eval()
        found |= {f"{prefix}.{name}": value for name, value in towers[prefix].state_dict().items()}
        found[f"{prefix}.embeddings.position_ids"] = torch.arange(64)[None]
    return found, towers


@pytest.mark.parametrize("named", [False, True])
def test_a_checkpoint_of_dpr_becomes_two_directories(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    tensors, towers = weights(files)
    state: Any = CheckpointState(tensors, {"state": {}}, {}, 0, 3, {"sequence_length": 256, "encoder_model_type": "hf"})
    if named:  # as it is pickled where the class is DPR's own
        module = ModuleType("dpr.utils.model_utils")
        module.CheckpointState = CheckpointState  # type: ignore[attr-defined]
        monkeypatch.setattr(CheckpointState, "__module__", module.__name__)
        for name in ("dpr", "dpr.utils", module.__name__):
            monkeypatch.setitem(sys.modules, name, module)
    torch.save(state if named else state._asdict(), tmp_path / "dpr_biencoder.3")
    monkeypatch.undo()
    ConvertDPR(str(tmp_path / "dpr_biencoder.3"), str(files / "towers/query"), str(tmp_path / "out")).run()
    for prefix, name in (("question_model", "query"), ("ctx_model", "passage")):
        tower = TextTower.open(tmp_path / "out" / name, 64)
        (row,) = tower.query_ids([["big lark", "iron"]])
        with torch.no_grad():
            expected = towers[prefix](input_ids=torch.tensor([row])).last_hidden_state[:, 0]
        torch.testing.assert_close(tower.vectors([row], 1), expected, atol=1e-6, rtol=0)


class Harm:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_other_files_are_refused_and_nothing_is_executed(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, _ = weights(files)

    def refused(state: Any, said: str) -> None:
        torch.save(state, tmp_path / "file")
        with pytest.raises(ModelError, match=said) as caught:
            ConvertDPR(str(tmp_path / "file"), str(files / "towers/query"), str(tmp_path / "out")).run()
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()

    refused({"model_dict": tensors, "encoder_params": Harm()}, "cannot be read as weights alone .*print")
    refused({"state": tensors}, "holds no model_dict")
    refused({"model_dict": {"ctx_model.a": torch.zeros(1)}}, "holds no question_model")
    gone = "ctx_model.encoder.layer.0.output.dense.bias"
    refused({"model_dict": {key: value for key, value in tensors.items() if key != gone}}, f"1 weights .* {gone}")
    refused({"model_dict": {**tensors, gone: torch.zeros(3)}}, rf"{gone} has the shape \[3\].* \[32\]")
    refused({"model_dict": {**tensors, gone: torch.full((32,), torch.nan)}}, "not finite")
    projected = {**tensors, "question_model.encode_proj.weight": torch.zeros(2, 32)}
    refused({"model_dict": projected}, "question_model.encode_proj.weight is no weight of a BERT")
    (tmp_path / "file").write_bytes(pickle.dumps(Harm(), protocol=2))
    for name, said in (("file", "cannot be read as weights alone"), ("none", "no such file")):
        with pytest.raises(ModelError, match=said):
            ConvertDPR(str(tmp_path / name), str(files / "towers/query"), str(tmp_path / "out")).run()
    assert "executed" not in capsys.readouterr().out


def dense(query: Path, passage: Path, **more: Any) -> DenseConfig:
    encoder = EncoderConfig(query=str(query), passage=str(passage), batch_size=8, device="cpu", **more)
    return DenseConfig(encoder, shard_size=5, progress=False)


def mean_rank(retriever: Any) -> float:
    """Of the first positive of the held-out queries among the 16 passages."""
    rows = dpr_rows(16, 40)
    found = retriever.search([" [SEP] ".join(row["turns"]) for row in rows], 16)
    ranks = [[hit.id for hit in hits].index(row["positives"][0]["id"]) for row, hits in zip(rows, found, strict=True)]
    return 1 + sum(ranks) / len(ranks)


@pytest.mark.needs("faiss")
def test_trained_towers_retrieve_better_and_share_the_index(files: Path, tmp_path: Path) -> None:
    query, passage, run = files / "towers/query", files / "towers/passage", tmp_path / "run"
    TrainDPR(
        output_dir=str(run),
        data=str(files / "train.jsonl"),
        query_model=str(query),
        passage_model=str(passage),
        optimizer=OptimizerConfig(lr=1e-2, eps=1e-4, schedule="constant"),
        batches=BatchConfig(8, 8, 8),
        total_steps=60,
        dropout=0.0,
        processes=ProcessConfig(threads=1),
    ).run()
    dense(query, passage).build(str(files / "corpus.jsonl"), tmp_path / "index")
    before = RecordedConfig().open(tmp_path / "index")
    after = dense(run, passage).open(tmp_path / "index")
    assert mean_rank(before) > 4 > 2 > mean_rank(after)
    assert mean_rank(dense(run / "model/query", run).open(tmp_path / "index")) == mean_rank(after)
    assert read_json(tmp_path / "index/index.json")["settings"]["similarity"] == "dot"
    with pytest.raises(ConfigError, match="weights"):
        dense(run, query).open(tmp_path / "index")


@pytest.mark.needs("faiss")
def test_the_retriever_scores_what_the_towers_say(files: Path, tmp_path: Path) -> None:
    config = dense(files / "towers/query", files / "towers/passage")
    config.build(str(files / "corpus.jsonl"), tmp_path / "index")
    rows = read_jsonl(files / "corpus.jsonl")
    query, passage = (TextTower.open(files / "towers" / name, 384) for name in ("query", "passage"))
    vectors = passage.vectors(passage.passage_ids([(row["title"], row["text"]) for row in rows]), 4)
    asked = query.vectors(query.query_ids([["big", "old lark"], ["iron"]]), 4)
    scores = config.open(tmp_path / "index").score_pool(["big [SEP] old lark", "iron"], [row["id"] for row in rows])
    torch.testing.assert_close(torch.from_numpy(scores), asked @ vectors.T, atol=1e-4, rtol=0)


def test_one_model_or_two_towers(files: Path, tmp_path: Path) -> None:
    path = str(files / "towers/query")
    for given in ({}, {"query": path}, {"path": path, "passage": path}, {"path": path, "query": path, "passage": path}):
        with pytest.raises(ConfigError, match="expected path, one model, or without it query and passage"):
            EncoderConfig(**given)
    for key, value in (("pooling", "mean"), ("query_prefix", "query: "), ("passage_prefix", "")):
        with pytest.raises(ConfigError, match=f"encoder.{key}: towers"):
            EncoderConfig(query=path, passage=path, **{key: value})
    assert EncoderConfig(path).compared_by == "cosine" and EncoderConfig(query=path, passage=path).compared_by == "dot"
    save_tower(tmp_path / "wide", 0, width=16)
    with pytest.raises(ModelError, match="expected two of one width"):
        dense(files / "towers/query", tmp_path / "wide").encoder.load()
    unit = EncoderConfig(query=path, passage=path, similarity="cosine", device="cpu").load().encode(["big"], "passage")
    assert float((unit**2).sum()) == pytest.approx(1, abs=1e-5)
