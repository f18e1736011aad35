"""The text generator: what it answers, and that nothing but the text and the seed decides it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import finegrained_rlhf
from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.records import Greedy, Prompt, Rollout, Sample
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.generator import PolicyGenerator, load_policy, text_ids
from finegrained_rlhf.models.tiny import TinyGPT2Config, TinyLlamaConfig, TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_gpt2, build_llama, build_t5, build_tokenizer, causal_tokenizer

TEXTS = [
    "question: what is the color? context: the color of Ana is red.",
    "question: who is it? context: Bo.",
    "question: what is the job, the city and the sport of Ana? context: the job of Ana is pilot. the city is Rome.",
]


def lively(model: torch.nn.Module) -> torch.nn.Module:
    """Larger random weights, so that different prompts have different answers."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    tokenizer = build_tokenizer(TEXTS)
    # A run directory as training leaves it, and a plain model directory.
    run, plain = root / "run", root / "gpt2"
    lively(build_t5(tokenizer, TinyT5Config(d_model=32, d_ff=64, tied=False), seed=3)).save_pretrained(run / "policy")
    tokenizer.save_pretrained(run / "policy")
    causal = causal_tokenizer(tokenizer, 256)
    lively(build_gpt2(causal, TinyGPT2Config(d_model=32, max_length=256), seed=4)).save_pretrained(plain)
    causal.save_pretrained(plain)
    lively(build_llama(causal, TinyLlamaConfig(d_model=32, max_length=256), seed=4)).save_pretrained(root / "llama")
    causal.save_pretrained(root / "llama")
    return {"t5": run, "gpt2": plain, "llama": root / "llama"}


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_greedy_answers_are_those_of_transformers_own_generate(directories: dict[str, Path], kind: str) -> None:
    generator = finegrained_rlhf.load_policy(directories[kind], device="cpu")
    answers = generator.generate(TEXTS, max_new_tokens=12, batch_size=2)
    for text, answer in zip(TEXTS, answers, strict=True):
        ids = generator.tokenizer(text, return_tensors="pt").input_ids
        output = generator.policy.model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0]
        output = output[1:] if kind == "t5" else output[ids.shape[1] :]
        assert answer == [generator.tokenizer.decode(output, skip_special_tokens=True)]
    assert len({answer[0] for answer in answers}) > 1


def test_a_continuation_has_the_blank_that_decoding_a_response_alone_drops(directories: dict[str, Path]) -> None:
    """Prompt and continuation are together the text of all ids; a mark has no blank before it, a word has one."""
    generator, decoding = load_policy(directories["gpt2"], device="cpu"), Sample(8, temperature=2.0)
    prompts = [Prompt(text, text, tuple(generator.tokenizer(text)["input_ids"])) for text in TEXTS]
    memory = generator._engine.encode(prompts)
    rollout = generator._engine.decode(memory, [decoding], max_new_tokens=6, seed=0)
    batches = generator.stream(prompts, decoding, max_new_tokens=6)
    responses = [response for batch in batches for group in batch for response in group]
    for row, response in enumerate(responses):
        prompt = prompts[int(rollout.prompt_index[row])]
        ids = [*prompt.input_ids, *rollout.response_ids[row][: rollout.lengths()[row]].tolist()]
        assert prompt.text + response.continuation == generator.tokenizer.decode(ids, skip_special_tokens=True)
    assert " " in {response.before for response in responses}


def test_samples_of_a_text_depend_on_no_other_text(directories: dict[str, Path]) -> None:
    generator = load_policy(directories["t5"], device="cpu")
    decoding = Sample(3, temperature=1.5)
    together = generator.generate(TEXTS, decoding, max_new_tokens=8, batch_size=3, seed=7)
    backwards = generator.generate(TEXTS[::-1], decoding, max_new_tokens=8, batch_size=2, seed=7)
    alone = generator.generate(TEXTS[1:2], decoding, max_new_tokens=8, seed=7)
    assert together == backwards[::-1]
    assert together[1:2] == alone
    assert [len(group) for group in together] == [3, 3, 3]
    assert len(set(together[0])) > 1
    assert together != generator.generate(TEXTS, decoding, max_new_tokens=8, seed=8)


def test_equal_texts_are_sampled_apart(directories: dict[str, Path]) -> None:
    generator = load_policy(directories["t5"], device="cpu")
    first, second = generator.generate([TEXTS[0], TEXTS[0]], Sample(1, temperature=1.5), max_new_tokens=12)
    assert first != second
    names = text_ids(["a", "b", "a", "a"])
    assert names[2:] == [f"{names[0]}-2", f"{names[0]}-3"] and len(set(names)) == 4
    assert text_ids(["b"]) == names[1:2]


class ScriptedEngine:
    """Answers with ids that the test wrote down; the first prompt's answer ends, the second is cut off."""

    rows = [[5, 6, 1], [5, 6, 7]]

    def encode(self, prompts: list[Prompt]) -> list[Prompt]:
        return prompts

    def decode(self, memory: list[Prompt], decodings: list[Greedy], **settings: int) -> Rollout:
        count = len(memory)
        ids = torch.tensor(self.rows[:count])
        index = torch.arange(count)
        ones = torch.ones_like(ids)
        texts, ends = [f"text {i}" for i in range(count)], [(1, 2, 6)] * count
        return Rollout(memory, ids, ones, index, index * 0, index * 0, decodings, ids, ones, ids.float(), texts, ends)


def test_length_leaves_out_the_end_of_sequence(directories: dict[str, Path]) -> None:
    policy = load_policy(directories["t5"], device="cpu").policy
    prompts = [Prompt(str(i), "who", (5, 1)) for i in range(2)]
    (batch,) = PolicyGenerator(policy, ScriptedEngine()).stream(prompts, max_new_tokens=3)
    found = [(response.text, response.tokens, response.finished) for (response,) in batch]
    assert found == [("text 0", 2, True), ("text 1", 3, False)]


def test_a_prompt_beyond_the_limit_is_cut_with_a_warning_or_refused(
    directories: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    generator = load_policy(directories["t5"], device="cpu")
    short = generator.generate(TEXTS[:1], max_new_tokens=4, max_prompt_tokens=6)
    assert "1 of 1 prompts are longer than 6 tokens" in caplog.text
    assert len(short) == 1
    with pytest.raises(DataError, match="6"):
        generator.generate(TEXTS[:1], max_new_tokens=4, max_prompt_tokens=6, prompt_too_long="refuse")


def test_wrong_calls_say_what_is_wrong(directories: dict[str, Path]) -> None:
    generator = load_policy(directories["t5"], device="cpu")
    assert generator.generate([]) == []
    with pytest.raises(TypeError, match="list of texts"):
        generator.generate("one string")
    with pytest.raises(ConfigError, match="batch_size"):
        generator.generate(TEXTS, batch_size=0)
    with pytest.raises(DataError, match="empty"):
        generator.generate([TEXTS[0], "  "])


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        finegrained_rlhf.load_policy(tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'load_polcy'"):
        _ = finegrained_rlhf.load_polcy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 4}, "temperature above 0"),
        ({"top_k": 20}, "temperature above 0"),
        ({"temperature": -1.0}, "temperature > 0"),
        ({"temperature": 1.0, "n": 0}, "n >= 1"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p <= 1"),
    ],
)
def test_decoding_settings_that_contradict_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecodingConfig(**settings)


def test_decoding_is_greedy_unless_a_temperature_is_given() -> None:
    assert DecodingConfig().build() == Greedy()
    assert DecodingConfig(4, 0.7, 20, 0.9).build() == Sample(4, 0.7, 20, 0.9)


def test_importing_the_package_loads_no_torch() -> None:
    code = "import finegrained_rlhf, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
