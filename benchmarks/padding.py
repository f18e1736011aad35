"""Supervised steps with `packing` against padded ones on a CPU: tokens that are computed, and processor time.

Examples:
    python benchmarks/padding.py out=padding.json
    python benchmarks/padding.py rounds=1 small=true

The project's own trainers on random models and on texts of log-normal lengths, both sides in turn on one thread, the
same examples a step; the sum over the steps of the fastest of several rounds. See docs/benchmarks.md.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LongformerConfig,
    LongformerForSequenceClassification,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from benchmarks.command import read_arguments, run_main
from benchmarks.families import CausalShape, build_causal, causal_config
from benchmarks.machine import describe_machine
from benchmarks.workload import EOS, PAD, SPECIALS, build_tokenizer
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.models.policy import CausalPolicy, Seq2SeqPolicy
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.classifier import TrainClassifier
from finegrained_rlhf.training.classifier.trainer import ClassifierExample, ClassifierTrainer
from finegrained_rlhf.training.sft.job import TrainSFT
from finegrained_rlhf.training.sft.trainer import Demonstration, SFTTrainer
from finegrained_rlhf.training.supervised import BatchConfig

VOCABULARY = 1024
STEPS = 4
WAYS = {"padded": False, "packing": True}
CLOSE = 1e-4
"""How far the losses of the two sides may differ, relative to the loss."""


@dataclass(frozen=True)
class Sizes:
    """How large models and texts are.

    Attributes:
        width: of the models.
        layers: of them; of encoder and decoder each.
        prompt: median tokens of a prompt, or of a text that is classified.
        answer: median tokens of an answer.
        batch: examples a step, all of them one micro-batch.
        window: of the Longformer.
    """

    width: int = 256
    layers: int = 4
    prompt: int = 120
    answer: int = 40
    batch: int = 16
    window: int = 128


SMALL = Sizes(width=32, layers=1, prompt=12, answer=5, batch=8, window=16)


def lengths(median: int, count: int, seed: int) -> list[int]:
    """Log-normal lengths, σ = 0.6, between 2 and four times the median."""
    drawn = np.exp(np.random.default_rng(seed).normal(np.log(median), 0.6, count))
    return np.clip(drawn, 2, 4 * median).astype(int).tolist()


def words(count: int, seed: int) -> tuple[int, ...]:
    """Token ids without special ones."""
    return tuple(np.random.default_rng(seed).integers(len(SPECIALS), VOCABULARY, count).tolist())


def policies(sizes: Sizes) -> dict[str, Callable[[], Any]]:
    """Decoder-only policy and encoder-decoder, both without dropout."""
    tokenizer = build_tokenizer(VOCABULARY)
    ids = {"pad_token_id": PAD, "eos_token_id": EOS}
    heads, inner = sizes.width // 32, 4 * sizes.width
    llama = CausalShape("llama", sizes.width, inner, sizes.layers, heads, heads, 32)
    config = causal_config(llama, VOCABULARY, 4096, **ids)
    t5 = T5Config(
        vocab_size=VOCABULARY,
        d_model=sizes.width,
        d_kv=32,
        d_ff=inner,
        num_layers=sizes.layers,
        num_heads=heads,
        dropout_rate=0.0,
        decoder_start_token_id=PAD,
        **ids,
    )
    return {
        "SFT, Llama": lambda: CausalPolicy(build_causal(config, torch.device("cpu"), len(SPECIALS)), tokenizer),
        "SFT, T5": lambda: Seq2SeqPolicy(T5ForConditionalGeneration(t5), tokenizer),
    }


def classifiers(sizes: Sizes) -> dict[str, Callable[[], Any]]:
    """A BERT and a Longformer with a head for two classes."""
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.width // 32,
        "intermediate_size": 4 * sizes.width,
        "max_position_embeddings": 4 * sizes.prompt + 8,
        "pad_token_id": PAD,
        "num_labels": 2,
    }
    wide = LongformerConfig(**shape, attention_window=sizes.window)

    def classifier(network: Any) -> TextClassifier:
        tokenizer = build_tokenizer(VOCABULARY)
        return TextClassifier(network, tokenizer, "LABEL_1", "softmax", 4 * sizes.prompt, "truncate")

    return {
        "classifier, BERT": lambda: classifier(BertForSequenceClassification(BertConfig(**shape))),
        "classifier, Longformer": lambda: classifier(LongformerForSequenceClassification(wide)),
    }


def trainers(sizes: Sizes) -> dict[str, Callable[[bool], tuple[Any, int]]]:
    """By case what makes a trainer, padded or with `packing`, and the tokens of an epoch, which is all its steps."""
    count = STEPS * sizes.batch
    prompts, answers = lengths(sizes.prompt, count, 1), lengths(sizes.answer, count, 2)
    asked = [
        Demonstration(Prompt(str(n), "", words(prompt, n)), (*words(answer - 1, count + n), EOS))
        for n, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    texts = [ClassifierExample(words(length, n), ((1.0, 0.0), (0.0, 1.0))[n % 2]) for n, length in enumerate(prompts)]
    rate = OptimizerConfig(lr=1e-4, schedule="constant")
    common: dict[str, Any] = {"output_dir": "", "data": "", "optimizer": rate, "dropout": 0.0, "total_steps": STEPS}

    def sft(build: Callable[[], Any], packing: bool) -> tuple[Any, int]:
        sized: dict[str, Any] = {"batch_size": sizes.batch, "micro_batch_size": sizes.batch}
        job = TrainSFT(policy=PolicyConfig(""), packing=packing, **sized, **common)
        return SFTTrainer(job, seeded(build), asked, [], Processes()), sum(prompts) + sum(answers)

    def classify(build: Callable[[], Any], packing: bool) -> tuple[Any, int]:
        job = TrainClassifier(model="", packing=packing, batches=BatchConfig(sizes.batch), **common)
        return ClassifierTrainer(job, seeded(build), texts, [], Processes()), sum(prompts)

    def seeded(build: Callable[[], Any]) -> Any:
        torch.manual_seed(0)
        return build().eval()

    made = {name: lambda packing, build=build: sft(build, packing) for name, build in policies(sizes).items()}
    more = {name: lambda packing, build=build: classify(build, packing) for name, build in classifiers(sizes).items()}
    return {**made, **more}


def embedded(model: torch.nn.Module) -> list[int]:
    """The tokens that a model embeds from now on, padding included, pass by pass."""
    seen: list[int] = []
    parts = [part.get_input_embeddings() for part in model.modules() if isinstance(part, PreTrainedModel)]
    for part in {id(part): part for part in parts}.values():
        part.register_forward_pre_hook(lambda module, args: seen.append(args[0].numel()))
    return seen


def measure(name: str, build: Callable[[bool], tuple[Any, int]], rounds: int) -> dict[str, Any]:
    """Tokens and processor seconds of all steps both ways.

    Raises:
        ConsistencyError: the two compute different losses.
    """
    sides = {way: build(packing) for way, packing in WAYS.items()}
    seen = {way: embedded(trainer.model) for way, (trainer, _) in sides.items()}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):  # the first one warms up
        losses: dict[str, list[float]] = {}
        for way in WAYS if number % 2 else reversed(WAYS):
            trainer, began = sides[way][0], time.process_time()
            losses[way] = [trainer.train_step(step)["loss"] for step in range(1, STEPS + 1)]
            if number:
                seconds[way].append(time.process_time() - began)
        if not np.allclose(losses["padded"], losses["packing"], rtol=CLOSE):
            raise ConsistencyError(f"{name}: the two ways give different losses, {losses}")
    padded, packed = (sum(seen[way]) // (rounds + 1) for way in WAYS)
    fastest = {way: min(spent) for way, spent in seconds.items()}
    return {
        "case": name,
        "tokens": sides["padded"][1],
        "padded": padded,
        "packing": packed,
        "of padded": packed / padded,
        **{f"{way}, s": spent for way, spent in fastest.items()},
        "time of padded": fastest["packing"] / fastest["padded"],
    }


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure all cases, print a table, write JSON if asked.

    Raises:
        ConfigError: a wrong argument.
        ConsistencyError: the two ways compute different losses.
    """
    given = read_arguments(arguments, ("out", "rounds", "small"))
    rounds = given.get("rounds", "3")
    if not rounds.isdigit() or int(rounds) < 1 or given.get("small", "true") not in ("true", "false"):
        raise ConfigError(f"expected rounds=1 or more and small=true or false, got {given}")
    torch.set_num_threads(1)
    sizes = SMALL if given.get("small") == "true" else Sizes()
    rows = [measure(name, build, int(rounds)) for name, build in trainers(sizes).items()]
    print(markdown_table(rows, list(rows[0])))
    machine = describe_machine(torch.device("cpu"), "fp32")
    result = {"machine": machine, "load": os.getloadavg()[0], "rounds": int(rounds), "steps": STEPS, "rows": rows}
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
