"""What single deviations change when small reward models are trained with them (see DEVIATIONS.md).

Example: python benchmarks/deviations_reward_models.py outputs/demo ../shared/data/qa_feedback/dev_feedback.json

Trains tiny reward models on the feedback of a finished FactWorld experiment, three seeds each, and two on a QA-FEEDBACK
file without the bar between passages, which are then scored with and without it. Accuracies are on dev records and of
the best of four validations, as in the experiment. About a quarter of an hour on one CPU core; a line for each result.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.models.tiny import TinyLongformerConfig
from finegrained_rlhf.models.tiny_networks import build_longformer, build_tokenizer, encoder_tokenizer
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.training.supervised import BatchConfig
from reward_models.config import RewardModelConfig
from reward_models.data.examples import LabelSettings, RewardExample, build_examples, hold_out
from reward_models.encoders.inputs import EncodedInput, RewardInputEncoder, pad_inputs
from reward_models.encoders.models import RewardModel, new_reward_model, raw_scores
from reward_models.job import TrainRewardModel
from reward_models.kinds import GlobalAttention, kind_named
from reward_models.parts import InputParts
from reward_models.record import RewardModelRecord
from reward_models.train import RewardModelTrainer
from reward_models.training.objectives import metrics_of, reward_model_objective

SEEDS, STEPS, VALIDATE_EVERY = (0, 1, 2), 400, 100
FACTWORLD = OptimizerConfig(lr=2e-3, weight_decay=0.01, warmup_ratio=0.1, max_grad_norm=1.0)
VOCABULARY, MAX_LENGTH, HELD_OUT = 4000, 2048, 0.1
TEMPLATE_STEPS: dict[str, int] = {"completeness": 200, "factuality": 100}


class WithoutBar(RewardInputEncoder):
    """Joins passages as the original's training files do, without ` | `."""

    def encode(self, parts: Sequence[InputParts]) -> list[EncodedInput]:
        """Token ids of the inputs."""
        joined = (replace(item, context=item.context.replace(" | wikipage:", " wikipage:")) for item in parts)
        return super().encode(list(joined))


def untrained(path: Path, kind: str, seed: int) -> RewardModel:
    """A reward model with a new head on the encoder at `path`, with the global attention of the published settings."""
    seed_everything(seed, "models")
    attention: GlobalAttention = "none" if kind in ("relevance", "factuality") else "first"
    return new_reward_model(path, RewardModelRecord(kind, attention, MAX_LENGTH))


def trained(
    model: RewardModel,
    train: Sequence[RewardExample],
    dev: Sequence[RewardExample],
    batch_size: int,
    steps: int,
    seed: int,
) -> tuple[float, float]:
    """Train; the highest dev accuracy of the validations, and the number of training inputs a step."""
    processes = Processes(ProcessConfig(precision="fp32", threads=1))
    batches = BatchConfig(batch_size, eval_batch_size=64)
    config = RewardModelConfig(model.record.kind, FACTWORLD, batches, steps=steps)
    job = TrainRewardModel(output_dir="", data="", model="", seed=seed, reward_model=config)
    trainer = RewardModelTrainer(job, model, train, dev, processes)
    seed_everything(seed, "training")
    scores, inputs = [], 0
    for step in range(1, steps + 1):
        trainer.train_step(step)
        inputs += sum(len(example.inputs) for example in trainer.plan.batch(step))
        if step % min(VALIDATE_EVERY, steps) == 0:
            scores.append(trainer.validate(step)["score"])
    return max(scores), inputs / steps


def examples_of(
    records: Sequence[FeedbackRecord], kind: str, encoder: RewardInputEncoder, matching: Any = "token_f1"
) -> list[RewardExample]:
    """Labelled inputs of all records."""
    return build_examples(records, LabelSettings(kind_named(kind), matching), encoder, SpacySegmenter("rules"))


def pairs_apart(examples: Sequence[RewardExample]) -> list[RewardExample]:
    """Each pair an example of its own, as the original shuffles them."""
    return [RewardExample((e.inputs[i], e.inputs[j]), pairs=((0, 1),)) for e in examples for i, j in e.pairs]


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over the seeds."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))
    return f"{mean:.3f} ± {deviation:.3f}"


def pair_batches(encoder: Path, train: Sequence[FeedbackRecord], dev: Sequence[FeedbackRecord], kind: str) -> None:
    """Pairs of a question together or shuffled, and batches of 12 or 24, with the same number of steps."""
    reader = RewardInputEncoder(untrained(encoder, kind, 0).tokenizer, MAX_LENGTH)
    together, validation = examples_of(train, kind, reader), examples_of(dev, kind, reader)
    for name, size, examples in (
        ("12 pairs, a question's together", 12, together),
        ("12 pairs, shuffled", 12, pairs_apart(together)),
        ("24 pairs, a question's together", 24, together),
    ):
        runs = [trained(untrained(encoder, kind, s), examples, validation, size, STEPS, s) for s in SEEDS]
        inputs = runs[0][1]
        print(f"{kind}, {name:32} dev {spread([score for score, _ in runs])}; {inputs:.1f} answers a step", flush=True)


def classes(encoder: Path, train: Sequence[FeedbackRecord], dev: Sequence[FeedbackRecord]) -> None:
    """A relevance model with its two classes, and with a third one that no label is of."""
    reader = RewardInputEncoder(untrained(encoder, "relevance", 0).tokenizer, MAX_LENGTH)
    examples, validation = examples_of(train, "relevance", reader), examples_of(dev, "relevance", reader)
    batch = pad_inputs([item for example in validation for item in example.inputs], reader.pad_id)
    for count in (2, 3):
        scores, third = [], 0.0
        for seed in SEEDS:
            model = untrained(encoder, "relevance", seed)
            if count == 3:
                wide = nn.Linear(model.model.classifier.in_features, count)
                nn.init.normal_(wide.weight, std=model.model.config.initializer_range)
                nn.init.zeros_(wide.bias)
                model.model.classifier = wide
            scores.append(trained(model, examples, validation, 32, STEPS, seed)[0])
            with torch.no_grad():
                third += float((model.segment_logits(batch).argmax(dim=-1) == 2).double().mean()) / len(SEEDS)
        print(
            f"relevance, {count} classes: dev {spread(scores)}; the third class wins {third:.1%} of segments",
            flush=True,
        )


def separators(llama: Path, train: Sequence[FeedbackRecord], dev: Sequence[FeedbackRecord]) -> None:
    """A decoder-only factuality model that is read at the separator behind a sentence, and at the one before it."""
    for name, causal in (("behind", True), ("before", False)):
        reader = RewardInputEncoder(untrained(llama, "factuality", 0).tokenizer, MAX_LENGTH, causal=causal)
        examples, validation = (examples_of(records, "factuality", reader) for records in (train, dev))
        scores = [trained(untrained(llama, "factuality", s), examples, validation, 32, STEPS, s)[0] for s in SEEDS]
        print(f"decoder-only factuality, read {name} the sentence: dev {spread(scores)}", flush=True)


@torch.no_grad()
def segment_answers(model: RewardModel, examples: Sequence[RewardExample]) -> torch.Tensor:
    """The class of every segment of the examples, [S]."""
    rows = [pad_inputs(example.inputs, model.pad_id) for example in examples]
    return torch.cat([model.segment_logits(batch).argmax(dim=-1) for batch in rows])


def template(feedback: Path, kind: str) -> None:
    """Train without the bar between passages, then score held-out records without and with it."""
    train, dev = hold_out(read_feedback(feedback), HELD_OUT, 0)
    texts = [text for record in train for passage in record.passages for text in passage.sentences]
    texts += [answer for record in train for answer in record.predictions]
    base = build_tokenizer(texts, "bpe", VOCABULARY)
    config = TinyLongformerConfig(max_length=MAX_LENGTH)
    with tempfile.TemporaryDirectory() as folder:
        build_longformer(base, config, 0).save_pretrained(folder)
        encoder_tokenizer(base, MAX_LENGTH).save_pretrained(folder)
        model = untrained(Path(folder), kind, 0)
    readers = [make(model.tokenizer, MAX_LENGTH) for make in (WithoutBar, RewardInputEncoder)]
    examples = examples_of(train, kind, readers[0], "original")
    without, with_bar = (examples_of(dev, kind, reader, "original") for reader in readers)
    trained(model, examples, without, 12, TEMPLATE_STEPS[kind], 0)
    model.eval()
    accuracies = [
        metrics_of(reward_model_objective(model, each)[1], model.record.definition.form)["accuracy"]
        for each in (without, with_bar)
    ]
    if kind == "factuality":
        answers = [segment_answers(model, each) for each in (without, with_bar)]
        change = f"{int((answers[0] != answers[1]).sum())} of {len(answers[0])} segment labels change"
    else:
        scores = [raw_scores(model, [i for e in each for i in e.inputs], 32) for each in (without, with_bar)]
        moved = float((scores[0] - scores[1]).abs().mean() / scores[0].std())
        change = f"scores move by {moved:.3f} of their standard deviation on average"
    print(f"template, {kind}: {change}; dev accuracy {accuracies[0]:.3f} without, {accuracies[1]:.3f} with", flush=True)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path, help="a finished pipeline=factworld/demo")
    parser.add_argument("feedback", type=Path, help="a QA-FEEDBACK feedback file")
    arguments = parser.parse_args()
    root: Path = arguments.directory
    train, dev = (read_feedback(root / name) for name in ("feedback.json", "feedback_dev.json"))
    encoder = root / "models/longformer"
    for kind in TEMPLATE_STEPS:
        template(arguments.feedback, kind)
    classes(encoder, train, dev)
    separators(root / "models/llama", train, dev)
    pair_batches(encoder, train, dev, "completeness")
    pair_batches(encoder, train, dev, "preference")


if __name__ == "__main__":
    main()
