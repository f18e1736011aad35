"""Chat models from end to end: what they read, where they end, and what a trained one does without being told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_toy import TEMPLATE, chat_tokenizer, save_chat_model, talk
from ppo_toy import WordScorer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.prompt_files import Message, PromptInput
from finegrained_rlhf.inference.generator import load_policy
from finegrained_rlhf.inference.inputs import encode_inputs, encode_prompts, prompts_for, read_prompts
from finegrained_rlhf.inference.jobs import Evaluate, Generate, SampleOutputs
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rewards import RewardConfig
from finegrained_rlhf.rollout import RolloutConfig
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.sft.job import TrainSFT

USER, ASSISTANT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
ROWS = [
    {"id": "a", "messages": talk("who ran far away", answer="the dog ran")},
    {"id": "b", "messages": talk("who sat", "the cat", "and the dog", answer="one dog sat")},
    {"id": "c", "messages": talk("red", answer="blue green")},
]
FP32 = ProcessConfig(precision="fp32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_chat_model(tmp_path_factory.mktemp("chat")))


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_jsonl(tmp_path / "data.jsonl", ROWS)
    return str(tmp_path / "data.jsonl")


def test_conversations_by_the_template_and_texts_as_they_are() -> None:
    tokenizer = chat_tokenizer()
    talked = PromptInput("t", "red", {"question": "red"}, (Message("user", "red"),))
    text = PromptInput("p", "the cat")
    first, second = encode_inputs([talked, text], tokenizer, 64)
    assert first.text == f"{USER}red{ASSISTANT}"
    assert first.metadata == {"question": "red", "messages": ({"role": "user", "content": "red"},)}
    assert second == encode_prompts([("p", "the cat")], tokenizer, 64)[0]
    for setting in (PromptConfig("on"), PromptConfig("on", "be kind")):
        put = encode_inputs([talked, text], tokenizer, 64, prompt=setting)[1]
        system = "<|im_start|>system\nbe kind<|im_end|>\n" if setting.system else ""
        assert put.text == f"{system}{USER}the cat{ASSISTANT}"
    with pytest.raises(ConfigError, match="prompt.system: the data are texts, which are put as they are"):
        encode_inputs([text], tokenizer, 64, prompt=PromptConfig(system="be kind"))
    off = encode_inputs([talked, text], tokenizer, 64, prompt=PromptConfig("off"))
    assert [prompt.text for prompt in off] == ["red", "the cat"]
    assert encode_inputs([talked], chat_tokenizer(None), 64)[0].text == "red"  # one message needs no template
    long = PromptInput("l", "", {}, (Message("system", "be kind"), Message("user", "red")))
    with pytest.raises(ConfigError, match="record l is a conversation of 2 messages, which needs a chat template"):
        encode_inputs([long], chat_tokenizer(None), 64)


def test_a_long_conversation_loses_the_end_of_its_last_message_only(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = chat_tokenizer()
    item = PromptInput("t", "", {}, tuple(Message(**m) for m in talk("who", "the dog", "the cat sat on a mat")))
    (whole,) = encode_inputs([item], tokenizer, 64)
    for limit in range(len(whole.input_ids) - 5, len(whole.input_ids) + 1):
        (cut,) = encode_inputs([item], tokenizer, limit)
        assert len(cut.input_ids) <= limit
        assert cut.text.startswith(whole.text[: whole.text.index("cat")].rstrip()) and cut.text.endswith(ASSISTANT)
    assert cut == whole and "1 of 1 conversations are longer" in caplog.text
    with pytest.raises(DataError, match="record t, field messages: the prompt has .* tokens with its chat template"):
        encode_inputs([item], tokenizer, 20, "refuse")
    with pytest.raises(DataError, match="record t, field messages: has more than 8 tokens even without its last"):
        encode_inputs([item], tokenizer, 8)


def test_a_template_that_refuses_names_file_and_record(tmp_path: Path) -> None:
    rows = [{"id": "fine", "messages": talk("who")}, {"id": "bad", "messages": [{"role": "tool", "content": "x"}]}]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(DataError, match="rows.jsonl, record bad, field messages: .* refuses .*: no tools here"):
        read_prompts(str(tmp_path / "rows.jsonl"), chat_tokenizer(), 64)


def test_the_end_of_turn_ends_an_answer(model: str, data: str, tmp_path: Path) -> None:
    policy = open_policy(model)
    end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    before = policy.eos_ids
    prompts_for(policy, [PromptInput("p", "the cat")], 64, "truncate", PromptConfig())
    assert policy.eos_ids == before and policy.prompt == PromptConfig() and end not in before
    prompts_for(policy, data, 64, "truncate", PromptConfig(system="be kind"))
    assert policy.eos_ids == (end, *before) and policy.prompt == PromptConfig("on", "be kind")
    save_policy(policy, tmp_path / "saved")
    again = open_policy(tmp_path / "saved")
    assert again.eos_ids == policy.eos_ids and again.prompt == policy.prompt
    assert again.tokenizer.chat_template == TEMPLATE
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert plain.generation_config.eos_token_id == [end, *before]
    (put,) = prompts_for(again, [PromptInput("p", "the cat")], 64, "truncate", PromptConfig())
    assert put.text == f"<|im_start|>system\nbe kind<|im_end|>\n{USER}the cat{ASSISTANT}"


def sft(model: str, data: str, output: Path, **keys: Any) -> TrainSFT:
    return TrainSFT(
        **{
            "data": data,
            "policy": PolicyConfig(model),
            "optimizer": OptimizerConfig(lr=0.02, eps=1e-8, schedule="constant"),
            "output_dir": str(output),
            "total_steps": 30,
            "batch_size": 3,
            "max_answer_tokens": 8,
            "max_prompt_tokens": 64,
            "processes": FP32,
            "prompt": PromptConfig(system="be kind"),
            **keys,
        }
    )


def answers(model: str, source: str, output: Path, **keys: Any) -> list[dict[str, Any]]:
    Generate(model, source, str(output), max_new_tokens=8, max_prompt_tokens=64, **keys).run()
    return read_jsonl(output)


def test_fine_tuning_on_conversations_teaches_the_answer_and_its_end(model: str, data: str, tmp_path: Path) -> None:
    sft(model, data, tmp_path / "run", validation_data=data).run()
    run = str(tmp_path / "run")
    rows = answers(run, data, tmp_path / "answers.jsonl")
    learned = {row["id"]: row["messages"][-1]["content"] for row in ROWS}
    assert {row["id"]: row["response"].strip() for row in rows} == learned
    assert rows[0]["prompt"] == f"<|im_start|>system\nbe kind<|im_end|>\n{USER}who ran far away{ASSISTANT}"
    assert read_json(tmp_path / "run/policy/prompt.json") == {"chat_template": "on", "system": "be kind"}

    loaded = load_policy(run)  # texts are put as they were in training, without being told
    assert [group[0].strip() for group in loaded.generate(["who ran far away", "red"], max_new_tokens=8)] == [
        learned["a"],
        learned["c"],
    ]
    keys: dict[str, Any] = {"max_new_tokens": 8, "max_prompt_tokens": 64}
    Evaluate(data, str(tmp_path / "metrics.json"), run, **keys).run()
    assert read_json(tmp_path / "metrics.json")["rouge_lsum"] == pytest.approx(1.0)
    assert read_json(tmp_path / "metrics.json")["finished_share"] == 1.0
    SampleOutputs(run, data, str(tmp_path / "outputs.jsonl"), samples=2, **keys).run()
    record = read_outputs(tmp_path / "outputs.jsonl")[1]
    assert record.question == "and the dog" and record.references == ("one dog sat",) and len(record.outputs) == 2


def test_fine_tuning_goes_on_bit_by_bit(model: str, data: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"checkpoint_every": 1, "validate_every": 1}
    sft(model, data, tmp_path / "whole", total_steps=3, **keys).run()
    sft(model, data, tmp_path / "parts", total_steps=1, **keys).run()
    sft(model, data, tmp_path / "parts", total_steps=3, **keys).run()
    one, other = (load_file(tmp_path / name / "policy/model.safetensors") for name in ("whole", "parts"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ConfigError, match="prompt.system: be kind -> null"):
        sft(model, data, tmp_path / "parts", total_steps=4, prompt=PromptConfig(), **keys).run()


class Listener(WordScorer):
    """Remembers what it was given to score."""

    def __init__(self) -> None:
        super().__init__("red")
        self.read: list[tuple[Prompt, str]] = []

    def score(self, prompts: Any, responses: Any) -> Any:
        self.read += zip(prompts, responses, strict=True)
        return super().score(prompts, responses)


def test_ppo_scores_the_answer_alone_and_keeps_the_template(model: str, data: str, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(TEMPLATE.replace("'assistant\\n'", "'assistant\\n'"))
    listener = Listener()
    TrainPPO(
        data=data,
        validation_data=data,
        policy=PolicyConfig(model),
        value=ValueConfig("shared"),
        reward=RewardConfig({"words": listener}, {"words": 1.0}),
        rollout=RolloutConfig(3, 2, max_new_tokens=6, top_k=0, temperature=1.0),
        ppo=PPOConfig(epochs=1),
        optimizer=OptimizerConfig(lr=1e-3),
        total_steps=1,
        output_dir=str(tmp_path / "run"),
        max_prompt_tokens=64,
        validate_every=None,
        processes=FP32,
        prompt=PromptConfig(str(tmp_path / "chat.jinja")),
    ).run()
    assert listener.read and not any("<|im" in response for _, response in listener.read)
    assert {prompt.text for prompt, _ in listener.read} >= {f"{USER}red{ASSISTANT}"}
    assert listener.read[0][0].metadata["messages"][0]["role"] == "user"
    assert read_json(tmp_path / "run/policy/prompt.json") == {"chat_template": "on", "system": None}
    assert open_policy(tmp_path / "run").tokenizer.chat_template == TEMPLATE


def test_validation_without_an_answer_is_refused(model: str, data: str, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "open.jsonl", [{"id": "x", "messages": talk("who")}])
    with pytest.raises(DataError, match="open.jsonl, record x, field answer: expected an answer to compare with"):
        sft(model, data, tmp_path / "run", validation_data=str(tmp_path / "open.jsonl")).run()
    with pytest.raises(DataError, match="record x, field answer: expected at least one reference answer"):
        sft(model, str(tmp_path / "open.jsonl"), tmp_path / "run").run()


@pytest.mark.parametrize("named", [True, False])
def test_a_tokenizer_without_an_end_is_refused(model: str, tmp_path: Path, named: bool) -> None:
    tokenizer = chat_tokenizer()
    tokenizer.eos_token = tokenizer.pad_token = None
    policy = open_policy(model)
    policy.model.generation_config.eos_token_id = 7 if named else None
    policy.model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    if named:  # as far as ends go the model's own word is enough, and it stands for padding too
        opened = open_policy(tmp_path)
        assert (opened.eos_ids, opened.pad_id) == ((7,), 7)
        return
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    with pytest.raises(ModelError, match="the tokenizer has no end-of-sequence token"):
        open_policy(tmp_path)
