"""Directories of strangers: no code of theirs runs, nobody is asked, no pickle is read, nothing outside is followed."""

from __future__ import annotations

import builtins
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_toy import model, tokenizer

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.from_disk import open_sentence_transformer
from finegrained_rlhf.models.loading import load_tokenizer, open_policy, read_model_config
from finegrained_rlhf.models.weights.saving import save_policy


class Mark:
    """What a pickle of it does: open a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Exists when a payload ran; a question on the terminal would be answered with yes."""
    asked: list[object] = []
    monkeypatch.setattr(builtins, "input", lambda *prompt: asked.append(prompt) or "y")
    path = tmp_path / "MARKER"
    yield path
    assert not path.exists() and not asked


def saved(path: Path, kind: str = "gpt2") -> Path:
    model(kind).save_pretrained(path)
    tokenizer(kind).save_pretrained(path)
    return path


def change(path: Path, **settings: Any) -> None:
    before = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**before, **settings}))


def with_code(directory: Path, marker: Path) -> None:
    """Modules that a class reference in a JSON file may name."""
    (directory / "marking.py").write_text(
        f"open({str(marker)!r}, 'w').close()\nfrom transformers import PretrainedConfig as MarkConfig\n"
        "from transformers import PreTrainedTokenizerFast as MarkTokenizer\nfrom torch.nn import Identity as Mark\n"
    )


def one_line(caught: pytest.ExceptionInfo[ModelError], *parts: str) -> None:
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_a_model_that_needs_its_own_code_is_refused(tmp_path: Path, marker: Path) -> None:
    path = saved(tmp_path / "m")
    with_code(path, marker)
    change(path / "config.json", model_type="of_nobody", auto_map={"AutoConfig": "marking.MarkConfig"})
    for read in (read_model_config, load_tokenizer, open_policy):
        with pytest.raises(ModelError) as caught:
            read(path)
        one_line(caught, str(path / "config.json"), "auto_map", "marking.MarkConfig")


def test_a_tokenizer_that_needs_its_own_code_is_refused(tmp_path: Path, marker: Path) -> None:
    path = saved(tmp_path / "m")
    with_code(path, marker)
    (path / "config.json").unlink()
    change(
        path / "tokenizer_config.json",
        tokenizer_class="MarkTokenizer",
        auto_map={"AutoTokenizer": ["marking.MarkTokenizer", None]},
    )
    with pytest.raises(ModelError) as caught:
        load_tokenizer(path)
    one_line(caught, str(path), "tokenizer")


def test_a_model_that_transformers_knows_is_opened_without_the_code_beside_it(tmp_path: Path, marker: Path) -> None:
    path = saved(tmp_path / "m")
    with_code(path, marker)
    classes = {"AutoConfig": "marking.MarkConfig", "AutoModelForCausalLM": "marking.MarkConfig"}
    change(path / "config.json", auto_map=classes)
    change(path / "tokenizer_config.json", auto_map={"AutoTokenizer": ["marking.MarkTokenizer", None]})
    (path / "custom_generate").mkdir()
    (path / "custom_generate" / "generate.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    assert type(open_policy(path).model).__name__ == "GPT2LMHeadModel"


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_kernels_from_elsewhere_are_refused(tmp_path: Path, key: str) -> None:
    path = saved(tmp_path / "m")
    change(path / "config.json", **{key: "someone/kernel"})
    with pytest.raises(ModelError) as caught:
        open_policy(path)
    one_line(caught, key, "someone/kernel")
    change(path / "config.json", **{key: {"text_config": "someone/kernel"}})
    with pytest.raises(ModelError, match="someone/kernel"):
        read_model_config(path)


def test_pickled_weights_are_refused(tmp_path: Path, marker: Path) -> None:
    path = saved(tmp_path / "m")
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps(Mark(marker)))
    with pytest.raises(ModelError) as caught:
        open_policy(path)
    one_line(caught, str(path), "safetensors")


def test_an_adapter_beside_a_model_is_refused(tmp_path: Path, marker: Path) -> None:
    path = saved(tmp_path / "m")
    change(path / "adapter_config.json", peft_type="LORA", base_model_name_or_path=str(tmp_path / "elsewhere"))
    (path / "adapter_model.bin").write_bytes(pickle.dumps(Mark(marker)))
    with pytest.raises(ModelError) as caught:
        open_policy(path)
    one_line(caught, "adapter_config.json", "policy.adapter")


def test_an_adapter_is_weights_on_the_model_that_the_user_named(tmp_path: Path, marker: Path) -> None:
    base = saved(tmp_path / "base")
    save_policy(open_policy(base, lora=LoraConfig(rank=2, alpha=6)), tmp_path / "policy")
    adapter = tmp_path / "policy" / "adapter"
    record = adapter / "adapter_config.json"

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with_code(elsewhere, marker)
    change(elsewhere / "config.json", model_type="of_nobody", auto_map={"AutoConfig": "marking.MarkConfig"})
    change(record, base_model_name_or_path=str(elsewhere))
    assert type(open_policy(base, adapter=str(adapter)).model).__name__ == "GPT2LMHeadModel"

    for wrong, part in (
        ({"megatron_config": {"x": 1}, "megatron_core": "marking"}, "megatron_config"),
        ({"peft_type": "XLORA", "megatron_config": None}, "XLORA"),
    ):
        change(record, **wrong)
        with pytest.raises(ModelError) as caught:
            open_policy(base, adapter=str(adapter))
        one_line(caught, str(record), part)

    change(record, peft_type="LORA")
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / "adapter_model.bin").write_bytes(pickle.dumps(Mark(marker)))
    with pytest.raises(ModelError) as caught:
        open_policy(base, adapter=str(adapter))
    one_line(caught, str(adapter), "adapter_model.safetensors")
    with pytest.raises(ModelError, match="no adapter here"):
        open_policy(base, adapter="someone/adapter")  # nothing is looked for on the Hub


POOLING = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}


def sentence_model(path: Path, *modules: dict[str, Any]) -> Path:
    saved(path, "gpt2")
    (path / "1_Pooling").mkdir()
    (path / "modules.json").write_text(json.dumps(modules))
    return path


@pytest.mark.parametrize(
    ("module", "part"),
    [
        ({**POOLING, "type": "marking.Mark"}, "marking.Mark"),
        ({**POOLING, "type": "sentence_transformers.util.import_from_string"}, "import_from_string"),
        ({**POOLING, "type": "sentence_transformers.models.Router"}, "Router"),
        ({**POOLING, "type": None}, "None"),
        ({**POOLING, "path": "../elsewhere"}, "outside"),
    ],
)
def test_parts_of_sentence_transformers_are_its_own(
    tmp_path: Path, marker: Path, module: dict[str, Any], part: str
) -> None:
    path = sentence_model(tmp_path / "e", TRANSFORMER, module)
    with_code(path, marker)
    with pytest.raises(ModelError) as caught:
        open_sentence_transformer(path, "cpu")
    one_line(caught, str(path / "modules.json"), part)


@pytest.mark.parametrize(
    ("file", "settings", "part"),
    [
        ("config.json", {"activation_function": "marking.Mark"}, "activation_function"),
        ("config.json", {"activation_function": "torch.hub.load"}, "activation_function"),
        ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}, "trust_remote_code"),
        ("adapter_config.json", {"base_model_name_or_path": "someone/model"}, "adapter"),
        ("config.json", {"auto_map": {"AutoModel": "marking.Mark"}, "model_type": "of_nobody"}, "auto_map"),
    ],
)
def test_settings_of_such_parts_name_nothing_elsewhere(
    tmp_path: Path, marker: Path, file: str, settings: dict[str, Any], part: str
) -> None:
    dense = {**POOLING, "type": "sentence_transformers.models.Dense"}
    path = sentence_model(tmp_path / "e", TRANSFORMER, dense)
    with_code(path / "1_Pooling", marker)
    (path / "1_Pooling" / file).write_text(json.dumps(settings))
    with pytest.raises(ModelError) as caught:
        open_sentence_transformer(path, "cpu")
    one_line(caught, str(path / "1_Pooling"), part)


def test_pickled_parts_are_refused(tmp_path: Path, marker: Path) -> None:
    path = sentence_model(tmp_path / "e", TRANSFORMER, POOLING)
    (path / "1_Pooling" / "pytorch_model.bin").write_bytes(pickle.dumps(Mark(marker)))
    with pytest.raises(ModelError, match="pickled weights"):
        open_sentence_transformer(path, "cpu")


def test_torch_reads_no_program_by_default(tmp_path: Path, marker: Path) -> None:
    """peft and sentence-transformers read some files by `torch.load`; that this is safe is the declared minimum's."""
    torch.save({"a": torch.zeros(1), "b": Mark(marker)}, tmp_path / "x.bin")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "x.bin")
