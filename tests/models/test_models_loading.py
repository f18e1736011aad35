"""Models from directories and back; whatever is wrong with a directory gets one clear line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from families_toy import family_policy
from hub_toy import COMMIT, put_into_cache
from huggingface_hub import constants
from rl_toy import CAUSAL, model, policy, prompts, responses, tokenizer
from safetensors.torch import load_file, save_file, save_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BertConfig, BertForMaskedLM, LongformerConfig

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, ModelError
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.models.loading import check_vocabulary, load_tokenizer, model_directory, open_policy
from finegrained_rlhf.models.policy import CausalPolicy, Seq2SeqPolicy
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel
from finegrained_rlhf.models.weights.files import read_model_files
from finegrained_rlhf.models.weights.restore import restore_weights
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.runtime.directory.fingerprints import fingerprint, inputs_of
from finegrained_rlhf.runtime.directory.run_records import changes

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])


def save(kind: str, path: Path) -> Path:
    save_policy(policy(kind), path)
    return path


@torch.no_grad()
def score(ours: Seq2SeqPolicy | CausalPolicy, kind: str) -> torch.Tensor:
    ids, mask = responses(kind)
    return ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask).logprobs


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1", "mt5", "gpt2", "llama"])
def test_a_saved_policy_opens_again_bit_by_bit(kind: str, tmp_path: Path) -> None:
    ours = open_policy(save(kind, tmp_path / "run" / "policy"))
    assert isinstance(ours, CausalPolicy if kind in CAUSAL else Seq2SeqPolicy)
    assert torch.equal(score(ours, kind), score(policy(kind), kind))
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    assert not any(module.training for module in ours.modules())
    again = open_policy(tmp_path / "run")  # a run directory
    assert torch.equal(score(again, kind), score(ours, kind))
    text = "the cat, one dog"
    assert ours.tokenizer(text)["input_ids"] == tokenizer(kind)(text)["input_ids"]


def test_it_opens_with_plain_transformers(tmp_path: Path) -> None:
    path = save("t5", tmp_path)
    plain, words = AutoModelForSeq2SeqLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    ids = words("the cat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(plain(input_ids=ids, labels=ids).logits, model("t5")(input_ids=ids, labels=ids).logits)
    assert (path / "model.safetensors").is_file()


def test_low_precision_files_are_trained_in_fp32(tmp_path: Path) -> None:
    model("t5").bfloat16().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    assert {p.dtype for p in open_policy(tmp_path).parameters()} == {torch.float32}


def test_directories_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere: no model here"):
        open_policy(tmp_path / "nowhere")
    assert model_directory(save("t5", tmp_path / "a" / "model"), export="model") == tmp_path / "a" / "model"
    assert model_directory(tmp_path / "a", export="model") == tmp_path / "a" / "model"
    (tmp_path / "a" / "model" / "config.json").write_text("{half")
    with pytest.raises(ModelError, match="not a model configuration"):
        open_policy(tmp_path / "a" / "model")


def test_damaged_and_absent_weights(tmp_path: Path) -> None:
    path = save("t5", tmp_path / "p")
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError) as caught:
        open_policy(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    (path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be opened"):
        open_policy(path)


def test_weights_of_another_model_are_not_replaced_by_random_ones(tmp_path: Path) -> None:
    path = save("t5", tmp_path / "t5")
    shutil.copy(save("gpt2", tmp_path / "gpt2") / "model.safetensors", path / "model.safetensors")
    with pytest.raises(ModelError, match="not those of a T5ForConditionalGeneration: .* are missing"):
        open_policy(path)
    path = save("t5", tmp_path / "t5")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "d_ff": 64}))
    with pytest.raises(ModelError, match="t5"):
        open_policy(path)


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    model("t5").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no tokenizer here"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{half")
    with pytest.raises(ModelError) as caught:
        load_tokenizer(tmp_path)
    assert "no readable tokenizer" in str(caught.value) and "\n" not in str(caught.value)


def test_an_encoder_is_no_policy(tmp_path: Path) -> None:
    config = BertConfig(vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"{tmp_path}: expected a policy, a causal language model .*BertLMHeadModel"):
        open_policy(tmp_path)
    LongformerConfig(attention_window=4).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=f"{tmp_path}: a longformer model, expected a policy such as T5 or Llama"):
        open_policy(tmp_path)


def test_policy_settings(tmp_path: Path) -> None:
    path = str(save("t5", tmp_path))
    with pytest.raises(ConfigError, match="set one of them"):
        PolicyConfig(path, lora=LoraConfig(), adapter="a")
    loaded = PolicyConfig(path, gradient_checkpointing=True).load()
    assert loaded.model.is_gradient_checkpointing
    assert not PolicyConfig(path).load().model.is_gradient_checkpointing


def test_value_models(tmp_path: Path) -> None:
    path, owner = str(save("t5", tmp_path / "t5")), policy("t5")
    torch.manual_seed(0)
    separate = ValueConfig("separate", path).load(owner)
    assert isinstance(separate, SeparateValueModel) and not separate.training
    for name, weight in model("t5").state_dict().items():
        if name != "lm_head.weight":
            assert torch.equal(separate.backbone.state_dict()[name], weight)
    torch.manual_seed(0)
    assert torch.equal(ValueConfig("separate", path).load(owner).head.hidden.weight, separate.head.hidden.weight)
    assert isinstance(ValueConfig("shared").load(owner), SharedTrunkValueModel)
    causal = str(save("gpt2", tmp_path / "gpt2"))
    assert isinstance(ValueConfig("separate", causal).load(policy("gpt2")), SeparateValueModel)
    with pytest.raises(ModelError, match="both be"):
        ValueConfig("separate", causal).load(owner)
    for kind, where in (("separate", None), ("shared", path)):
        with pytest.raises(ConfigError, match=r"value\.path"):
            ValueConfig(kind, where)
    with pytest.raises(ConfigError, match=r"kind: expected one of separate, shared, none"):
        ValueConfig("other", path)


def test_ids_without_an_embedding_are_refused() -> None:
    ours = policy("t5")
    rows = ours.model.get_input_embeddings().weight.shape[0]
    check_vocabulary(ours, [[0, rows - 1], []])
    with pytest.raises(ModelError, match=f"id {rows}"):
        check_vocabulary(ours, [[0], [1, rows]])


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1", "gpt2"])
def test_restoring_is_exact(kind: str, tmp_path: Path) -> None:
    save_policy(policy(kind, seed=1), tmp_path / "policy")
    target = policy(kind, seed=0)
    shared = target.model.get_input_embeddings().weight
    restore_weights(target.model, tmp_path / "policy")
    assert torch.equal(score(target, kind), score(policy(kind, seed=1), kind))
    assert target.model.get_input_embeddings().weight is shared  # in place: the optimizer keeps its parameters


def test_restoring_where_the_weights_have_other_names_on_disk(tmp_path: Path) -> None:
    """Qwen3-MoE's experts are one weight in the model and one each on disk."""
    saved, target = family_policy("qwen3_moe", seed=1), family_policy("qwen3_moe")
    save_policy(saved, tmp_path)
    restore_weights(target.model, tmp_path)
    for name, weight in saved.model.state_dict().items():
        assert torch.equal(target.model.state_dict()[name], weight), name


def test_restoring_a_value_model(tmp_path: Path) -> None:
    path, owner = str(save("t5", tmp_path / "t5")), policy("t5")
    torch.manual_seed(0)
    first, second = (ValueConfig("separate", path).load(owner) for _ in range(2))
    with torch.no_grad():
        first.backbone.shared.weight.add_(1.0)
    save_model(first, str(tmp_path / "value.safetensors"))
    restore_weights(second, tmp_path / "value.safetensors")
    for name, weight in first.state_dict().items():
        assert torch.equal(second.state_dict()[name], weight)


def test_a_checkpoint_of_another_architecture_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    target = policy("t5")
    before = score(target, "t5")
    save_policy(policy("gpt2"), tmp_path / "gpt2")
    save_policy(policy("t5", width=24), tmp_path / "wide")
    state = load_file(save("t5", tmp_path / "t5") / "model.safetensors")
    state.pop(sorted(state)[3])
    (tmp_path / "part").mkdir()
    save_file(state, tmp_path / "part" / "model.safetensors")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"12")
    (tmp_path / "empty").mkdir()
    for name in ("gpt2", "wide", "part", "empty"):
        with pytest.raises(CheckpointError, match="belongs to another architecture"):
            restore_weights(target.model, tmp_path / name)
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore_weights(target.model, tmp_path / "broken")
    assert torch.equal(score(target, "t5"), before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    broken = policy("t5")
    with torch.no_grad():
        next(iter(broken.model.encoder.block.parameters())).view(-1)[3] = value
    save_policy(broken, tmp_path)
    with pytest.raises(ModelError, match=r"not finite, for example in encoder\.block\.0\."):
        open_policy(tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_policy_and_value_model_of_the_hub(kind: str, tmp_path: Path, cache: Path) -> None:
    local = save(kind, tmp_path / "local")
    put_into_cache(cache, "org/name", local, ref="v1")
    config = PolicyConfig("org/name", revision="v1")
    assert torch.equal(score(config.load(), kind), score(open_policy(local), kind))
    ours = PolicyConfig("org/name@v1", LoraConfig(rank=2)).load()
    assert ours.adapter is not None
    assert isinstance(ValueConfig(path="org/name", revision="v1").load(ours), SeparateValueModel)
    assert isinstance(ValueConfig(path="org/name@v1").load(ours), SeparateValueModel)
    with pytest.raises(ModelError, match="hf download org/name$"):
        PolicyConfig("org/name").load()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text((local / "config.json").read_text())
    put_into_cache(cache, "org/pickled", tmp_path / "empty")
    with pytest.raises(ModelError, match=r"no \*.safetensors; weights in other formats are not read"):
        PolicyConfig("org/pickled").load()


def test_a_run_remembers_the_commit_of_a_hub_model(tmp_path: Path, cache: Path) -> None:
    local = save("t5", tmp_path / "local")
    policy = {"_target_": "finegrained_rlhf.models.PolicyConfig", "path": "org/name", "revision": "v1"}
    config = {"policy": policy, "reward": {"path": "org/name"}, "data": "org/name"}
    assert inputs_of(config) == {}
    put_into_cache(cache, "org/name", local, ref="v1")
    found = inputs_of(config)
    assert found == {"policy.path": {"path": "org/name", "commit": COMMIT, "sha256": fingerprint(local)}}
    then = {"policy": {**policy, "path": str(local)}}
    assert changes(then, {"policy": config["policy"]}, inputs_of(then), found) == []


def test_a_run_of_another_kind_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"or a run directory with policy/config.json; it is a run with model/\)"):
        read_model_files(tmp_path, ("policy",))
