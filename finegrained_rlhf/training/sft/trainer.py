"""Supervised fine-tuning: teach a policy reference answers by cross-entropy."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.inference.evaluation import evaluate_policy
from finegrained_rlhf.inference.generator import Answering, PolicyGenerator
from finegrained_rlhf.inference.monitor import ResponseMonitor
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.sharded import shard_layers, whole_weights
from finegrained_rlhf.runtime.loop.forecast import first_measured
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER
from finegrained_rlhf.training.micro_batches import rounds_together, stand_in
from finegrained_rlhf.training.order import items_of_step
from finegrained_rlhf.training.policy_state import PolicyTrainer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the answer to imitate.

    Attributes:
        prompt: the input.
        answer_ids: token ids of the answer, the end of sequence last.
    """

    prompt: Prompt
    answer_ids: tuple[int, ...]


def demonstrations(prompts: Sequence[Prompt], policy: Policy, max_answer_tokens: int) -> list[Demonstration]:
    """The first reference of each prompt as token ids.

    Answers longer than the limit lose their end, but not the end of sequence; how many do is logged.

    Args:
        prompts: with `references` in their metadata.
        policy: whose tokenizer and end of sequence are used.
        max_answer_tokens: longest answer in tokens, end of sequence included.

    Raises:
        DataError: there is no prompt, or one has no reference.
        ModelError: an answer has an id that the model has no embedding for, or the model has no position for its end.
    """
    if not prompts:
        raise DataError("expected at least one training example, got none", field="data")
    for prompt in prompts:
        if not prompt.metadata.get("references"):
            raise DataError("expected at least one reference answer, got none", record=prompt.id, field="answer")
    answers = [prompt.metadata["references"][0] for prompt in prompts]
    rows = plain_token_ids(policy.tokenizer, answers)
    too_long = sum(len(row) >= max_answer_tokens for row in rows)
    if too_long:
        logger.warning(
            "%d of %d answers are longer than %d tokens and lose their end", too_long, len(rows), max_answer_tokens
        )
    end = policy.eos_ids[0]
    items = [
        Demonstration(prompt, (*row[: max_answer_tokens - 1], end)) for prompt, row in zip(prompts, rows, strict=True)
    ]
    check_vocabulary(policy, [item.answer_ids for item in items])
    check_positions(policy.model.config, max(map(_length, items)))
    return items


def backward_cross_entropy(
    policy: Policy, items: Sequence[Demonstration], tokens: int, micro_batch_size: int, processes: Processes
) -> torch.Tensor:
    """Accumulate the gradient of Σ −log p(token) / `tokens` over the answers of this process.

    Args:
        policy: trained; in the mode that dropout asks for.
        items: this process's demonstrations; may be none.
        tokens: answer tokens of the step over all processes, which the sum is divided by.
        micro_batch_size: demonstrations in one forward and backward pass; they are sorted by length.
        processes: gives the precision.

    Returns:
        fp64 [1], the value.
    """
    ordered = sorted(items, key=_length, reverse=True)
    total = torch.zeros(1, dtype=torch.float64, device=policy.device)
    parts = math.ceil(len(ordered) / micro_batch_size)
    rounds = rounds_together(parts, processes)
    for start in first_measured(range(0, len(ordered), micro_batch_size)):
        part = ordered[start : start + micro_batch_size]
        ids, mask = pad_rows([item.answer_ids for item in part], policy.pad_id)
        places = mask.flatten().nonzero().squeeze(1)
        ids, places = on_device(ids, policy.device), on_device(places, policy.device)
        with processes.autocast():
            memory = policy.encode([item.prompt for item in part])
            states = policy.hidden(memory, torch.arange(len(part)), ids)
            logits = policy.head(states.flatten(0, 1).index_select(0, places))
        answers = ids.flatten().index_select(0, places)
        loss = nn.functional.cross_entropy(logits.float(), answers, reduction="sum") / tokens
        loss.backward()
        total += loss.detach()
    for _ in range(rounds - parts):  # take part in those of others, which need this process's shards
        batch = stand_in(policy.pad_id, policy.device)
        with processes.autocast():
            states = policy.hidden(policy.encode(batch.prompts), batch.index, batch.ids)
            logits = policy.head(states.flatten(0, 1))
        (logits.sum() * 0.0).backward()
    return total


@dataclass(frozen=True)
class SFTSettings:
    """The numbers of supervised fine-tuning.

    Attributes:
        batch_size: examples an optimizer step, over all processes.
        micro_batch_size: examples in one forward and backward pass of a process; does not change the result.
        dropout: rate everywhere in the model; None keeps the rates of the model.
        max_answer_tokens: longest answer in tokens, in training and in validation, end of sequence included.
        validation_batch_size: prompts answered at once in a process.
    """

    batch_size: int
    micro_batch_size: int
    dropout: float | None
    max_answer_tokens: int
    validation_batch_size: int


class SFTTrainer(PolicyTrainer):
    """Trains a policy on demonstrations. Satisfies the training loop's `Trainable`.

    The loss is Σ −log p(token) over the answer tokens of the global batch, divided by their global number, so neither
    micro-batches nor processes change a step (dropout draws apart).

    Args:
        policy: trained.
        data: demonstrations, drawn in a seeded order, epoch after epoch.
        validation: prompts with references that are answered greedily; the score is RougeLSum. May be empty.
        settings: batch sizes, dropout and limits.
        optimizer: rates and schedule.
        total_steps: training steps that the schedule spans.
        processes: of the run.
        seed: of the run.
        segmenter: spaCy pipeline that cuts sentences for RougeLSum.
        monitor: measures the validation answers as well.
    """

    def __init__(
        self,
        policy: Policy,
        data: Sequence[Demonstration],
        validation: Sequence[Prompt],
        settings: SFTSettings,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
        *,
        seed: int,
        segmenter: str = DEFAULT_SEGMENTER,
        monitor: ResponseMonitor | None = None,
    ) -> None:
        self.policy, self.data, self.validation, self.settings = policy.eval(), data, validation, settings
        self.processes, self.seed, self.segmenter, self.monitor = processes, seed, segmenter, monitor
        if settings.dropout is not None:
            set_dropout(policy.model, settings.dropout)
        if processes.sharding != "none":
            shard_layers(policy.model, processes)
        self.optimizer = optimizer.build(policy.model.named_parameters(), total_steps, processes)

    def train_step(self, step: int) -> dict[str, float]:
        """One optimizer step on the global batch. Returns its metrics, the same on every process."""
        started = time.perf_counter()
        size = self.settings.batch_size
        batch = items_of_step(self.data, step, size, self.seed)
        tokens = sum(len(item.answer_ids) for item in batch)
        share = [batch[i] for i in self.processes.share(size)]
        # Without dropout the two modes are one function, and that of evaluation has the faster passes.
        self.policy.train(self.settings.dropout != 0)
        loss = backward_cross_entropy(self.policy, share, tokens, self.settings.micro_batch_size, self.processes)
        self.policy.eval()
        norm = self.optimizer_step(step)
        seconds = time.perf_counter() - started
        return {
            "examples": step * size,
            "epoch": step * size / len(self.data),
            "loss": float(self.processes.sum_(loss)),
            "tokens": tokens,
            "lr": self.optimizer.lr(step),
            "gradient_norm": norm,
            "time/update_s": seconds,
            "time/update_tokens_per_s": tokens / max(seconds, 1e-9),
        }

    def validate(self, step: int) -> Mapping[str, float]:
        """Greedy answers to the validation prompts: `score` is their RougeLSum; see `evaluation.summarise`."""
        if not self.validation:
            return {}
        answering = Answering(
            max_new_tokens=self.settings.max_answer_tokens,
            batch_size=self.settings.validation_batch_size,
            progress=False,
        )
        with whole_weights(self.policy.model):
            evaluation = evaluate_policy(
                PolicyGenerator(self.policy, processes=self.processes),
                self.validation,
                self.processes,
                answering,
                oracle=self.monitor,
                segmenter=self.segmenter,
            )
        return {"score": evaluation.metrics["rouge_lsum"], **evaluation.metrics}


def _length(item: Demonstration) -> int:
    return len(item.prompt.input_ids) + len(item.answer_ids)
