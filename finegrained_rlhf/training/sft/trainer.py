"""Supervised fine-tuning: teach a policy reference answers, or whole texts, by cross-entropy.

On whole texts nothing is asked and everything is learnt: the first token of a text stands for the prompt, all others
and an end of sequence are what is imitated, and validation measures the log-likelihood of held-out texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.inference.evaluation import evaluate_policy
from finegrained_rlhf.inference.generator import Answering, PolicyGenerator
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.metrics.functions import perplexity_of
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.sft.job import TrainSFT
from finegrained_rlhf.training.supervised.trainer import SupervisedPolicyTrainer, warn_of_cut


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the answer to imitate.

    Attributes:
        prompt: the input.
        answer_ids: token ids of the answer, the end of sequence last.
    """

    prompt: Prompt
    answer_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of both."""
        return len(self.prompt.input_ids) + len(self.answer_ids)


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
    rows = plain_token_ids(policy.tokenizer, [prompt.metadata["references"][0] for prompt in prompts])
    warn_of_cut("answers", [len(row) for row in rows], max_answer_tokens)
    end = policy.eos_ids[0]
    items = [
        Demonstration(prompt, (*row[: max_answer_tokens - 1], end)) for prompt, row in zip(prompts, rows, strict=True)
    ]
    check_vocabulary(policy, [item.answer_ids for item in items])
    check_positions(policy.model.config, max(item.length for item in items))
    return items


def whole_texts(prompts: Sequence[Prompt], policy: Policy, max_tokens: int) -> list[Demonstration]:
    """Texts as demonstrations: of each the first token, then all others and an end of sequence.

    Args:
        prompts: the texts; those of fewer than two tokens are refused.
        policy: whose end of sequence is used.
        max_tokens: longest text, end of sequence included; longer ones lose their end, counted and logged.

    Raises:
        ConfigError: the policy is an encoder-decoder.
        DataError: there is no text, or one has a single token.
        ModelError: the model has no position for the end of the longest text.
    """
    if not isinstance(policy, CausalPolicy):
        raise ConfigError("whole_texts: expected a decoder-only policy, got an encoder-decoder")
    if not prompts:
        raise DataError("expected at least one text, got none", field="data")
    for prompt in prompts:
        if len(prompt.input_ids) < 2:
            raise DataError("expected a text of at least two tokens", record=prompt.id, field="text")
    warn_of_cut("texts", [len(prompt.input_ids) for prompt in prompts], max_tokens)
    check_positions(policy.model.config, min(max_tokens, 1 + max(len(prompt.input_ids) for prompt in prompts)))
    return [
        Demonstration(
            replace(prompt, input_ids=prompt.input_ids[:1]),
            (*prompt.input_ids[1 : max_tokens - 1], policy.eos_ids[0]),
        )
        for prompt in prompts
    ]


def answer_loss(policy: Policy, items: Sequence[Demonstration], in_rows: bool = False) -> Tensor:
    """Σ −log p(token) over the answers of some demonstrations, in nats: [] with a gradient.

    Args:
        policy: that imitates them.
        items: at least one.
        in_rows: as in `Policy.answer_states`.
    """
    states = policy.answer_states([item.prompt for item in items], [item.answer_ids for item in items], in_rows)
    answers = torch.tensor([token for item in items for token in item.answer_ids])
    logits = policy.head(states)
    return nn.functional.cross_entropy(logits.float(), on_device(answers, policy.device), reduction="sum")


class SFTTrainer(SupervisedPolicyTrainer[Demonstration]):
    """Trains a policy on demonstrations; see `SupervisedTrainer`.

    The loss is Σ −log p(token) over the answer tokens of the global batch, divided by their global number. Validation
    prompts with references are answered greedily; the score is RougeLSum.
    """

    job: TrainSFT
    sums: ClassVar[int] = 2
    speed: ClassVar[str] = "time/update_tokens_per_s"
    longest_first: ClassVar[bool] = True
    score_name = "RougeLSum"

    @property
    def in_rows(self) -> bool:
        """See `AdditiveTrainer`."""
        return self.job.packing and self.policy.takes_rows

    def objective(self, examples: Sequence[Demonstration], count: float, step: int) -> tuple[Tensor, Tensor]:
        """The loss, and [2]: itself, answer tokens."""
        loss = answer_loss(self.policy, examples, self.in_rows) / count
        return loss, torch.stack([loss.detach(), torch.full_like(loss, float(self.count(examples)))])

    def means(self, sums: Tensor) -> dict[str, float]:
        """Loss a token, and tokens."""
        return {"loss": float(sums[0]), "tokens": int(sums[1])}

    def count(self, batch: Sequence[Demonstration]) -> int:
        """Answer tokens."""
        return sum(len(item.answer_ids) for item in batch)

    def length(self, example: Demonstration) -> int:
        """Tokens of prompt and answer."""
        return example.length

    def training(self, on: bool) -> None:
        """Without dropout the two modes are one function, and that of evaluation has the faster passes."""
        self.policy.train(on and self.job.dropout != 0)

    def measured(self) -> Mapping[str, float]:
        """What greedy answers to the validation prompts are like; see `evaluation.summarise`."""
        answering = Answering(
            max_new_tokens=self.job.max_answer_tokens, batch_size=self.job.validation_batch_size, progress=False
        )
        generator = PolicyGenerator(self.policy, processes=self.processes)
        evaluation = evaluate_policy(
            generator,
            self.validation,
            self.processes,
            answering,
            oracle=self.job.monitor,
            segmenter=self.job.segmenter,
        )
        return evaluation.metrics

    def score(self, metrics: Mapping[str, float]) -> float:
        """RougeLSum."""
        return metrics["rouge_lsum"]


class WholeTextTrainer(SFTTrainer):
    """Trains a policy on whole texts; validation texts are demonstrations too."""

    score_name = "log-probability a token"

    def length(self, example: Demonstration) -> int:
        """Tokens that are learnt."""
        return len(example.answer_ids)

    @torch.no_grad()
    def measured(self) -> Mapping[str, float]:
        """`score`, the mean log-probability of a held-out token in nats, and their `perplexity`."""
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        sums, device = torch.zeros(2, dtype=torch.float64), self.policy.device
        with self.processes.autocast():
            for part in self.groups(share, self.job.validation_batch_size, learn=False):
                ids, mask = (on_device(t, device) for t in pad_rows([e.answer_ids for e in part], self.policy.pad_id))
                memory = self.policy.encode([one.prompt for one in part])
                logprobs = self.policy.logprobs(memory, torch.arange(len(part), device=device), ids, mask).logprobs
                sums += torch.stack([logprobs.double().sum(), mask.sum().double()]).cpu()
        total, tokens = self.processes.sum_(sums).tolist()
        return {"score": total / tokens, "perplexity": perplexity_of(-total / tokens), "tokens": tokens}

    def score(self, metrics: Mapping[str, float]) -> float:
        """The mean log-probability."""
        return metrics["score"]


def assemble_sft(job: TrainSFT, processes: Processes) -> SFTTrainer:
    """Load the policy and read prompts with their answers, or whole texts."""
    policy = job.policy.load(processes.loading_device)
    limits = job.max_prompt_tokens, job.prompt_too_long, job.prompt
    prompts = prompts_for(policy, job.data, *limits)
    validation = [] if not job.validation_data else prompts_for(policy, job.validation_data, *limits)
    validation = validation[: job.validation_prompts]
    check_vocabulary(policy, [prompt.input_ids for prompt in (*prompts, *validation)])
    if job.whole_texts:
        check_forward(policy, prompts, processes)
        texts, held_out = _texts(job, prompts, policy, job.data), _texts(job, validation, policy, job.validation_data)
        return WholeTextTrainer(job, policy, texts, held_out, processes)
    data = demonstrations(prompts, policy, job.max_answer_tokens)
    for prompt in validation:
        if not prompt.metadata.get("references"):
            problem = "expected an answer to compare with, got none"
            raise DataError(problem, file=job.validation_data, record=prompt.id, field="answer")
    check_forward(policy, prompts, processes)
    return SFTTrainer(job, policy, data, validation, processes)


def _texts(job: TrainSFT, prompts: Sequence[Prompt], policy: Policy, file: str | None) -> list[Demonstration]:
    try:
        return whole_texts(prompts, policy, job.max_answer_tokens) if file else []
    except DataError as error:
        raise error.at(file=file) from None
