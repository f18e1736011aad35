"""How supervised fine-tuning is put together and carried out: what the methods of `TrainSFT` do.

On whole texts nothing is asked and everything is learnt: the first token of a text stands for the prompt, all others
and an end of sequence are what is imitated, and validation measures the log-likelihood of held-out texts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.metrics.functions import perplexity_of
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.models.weights.sharded import whole_weights
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.sft.job import TrainSFT
from finegrained_rlhf.training.sft.trainer import Demonstration, SFTSettings, SFTTrainer, demonstrations


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
    cut = sum(len(prompt.input_ids) >= max_tokens for prompt in prompts)
    if cut:
        logger.warning("%d of %d texts are longer than %d tokens and lose their end", cut, len(prompts), max_tokens)
    check_positions(policy.model.config, min(max_tokens, 1 + max(len(prompt.input_ids) for prompt in prompts)))
    return [
        Demonstration(
            replace(prompt, input_ids=prompt.input_ids[:1]),
            (*prompt.input_ids[1 : max_tokens - 1], policy.eos_ids[0]),
        )
        for prompt in prompts
    ]


class WholeTextTrainer(SFTTrainer):
    """Trains a policy on whole texts; see `SFTTrainer` for its arguments.

    Attributes:
        held_out: texts whose log-likelihood is measured at validations; may be empty.
    """

    held_out: Sequence[Demonstration] = ()

    @torch.no_grad()
    def validate(self, step: int) -> Mapping[str, float]:
        """`score`, the mean log-probability of a held-out token in nats, and their `perplexity`."""
        if not self.held_out:
            return {}
        share = [self.held_out[i] for i in self.processes.share(len(self.held_out))]
        sums, overhead = torch.zeros(2, dtype=torch.float64), batch_overhead(self.policy.device)
        with whole_weights(self.policy.model), self.processes.autocast():
            for rows in length_groups(
                [len(one.answer_ids) for one in share], self.settings.validation_batch_size, overhead
            ):
                ids, mask = pad_rows([share[i].answer_ids for i in rows], self.policy.pad_id)
                ids, mask = on_device(ids, self.policy.device), on_device(mask, self.policy.device)
                memory = self.policy.encode([share[i].prompt for i in rows])
                logprobs = self.policy.logprobs(memory, torch.arange(len(rows), device=ids.device), ids, mask).logprobs
                sums += torch.stack([logprobs.double().sum(), mask.sum().double()]).cpu()
        total, tokens = self.processes.sum_(sums).tolist()
        return {"score": total / tokens, "perplexity": perplexity_of(-total / tokens), "tokens": tokens}


logger = logging.getLogger(__name__)

SomeTrainer = TypeVar("SomeTrainer", bound=SFTTrainer)


def train_sft(job: TrainSFT, built: SFTTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
    """Run the loop; the main process says where the best model is."""
    result = job.fit(built, job.loop_config(len(built.data)), processes, run)
    if processes.is_main and not result.already_done:
        score = "log-probability a token" if job.whole_texts else "RougeLSum"
        logger.info(job.outcome(result, run, score))
    return result


def assemble_sft(job: TrainSFT, processes: Processes, run: RunDirectory) -> SFTTrainer:
    """Load the policy and read prompts with their answers, or whole texts."""
    policy = job.policy.load(processes.loading_device)
    prompts = prompts_for(policy, job.data, job.max_prompt_tokens, job.prompt_too_long, job.prompt)
    validation = []
    if job.validation_data:
        validation = prompts_for(policy, job.validation_data, job.max_prompt_tokens, job.prompt_too_long, job.prompt)[
            : job.validation_prompts
        ]
    check_vocabulary(policy, [prompt.input_ids for prompt in (*prompts, *validation)])
    if job.whole_texts:
        check_forward(policy, prompts, processes)
        trainer = _trainer(job, WholeTextTrainer, policy, _texts(job, prompts, policy, job.data), [], processes)
        if validation:
            trainer.held_out = _texts(job, validation, policy, job.validation_data)
        return trainer
    data = demonstrations(prompts, policy, job.max_answer_tokens)
    for prompt in validation:
        if not prompt.metadata.get("references"):
            problem = "expected an answer to compare with, got none"
            raise DataError(problem, file=job.validation_data, record=prompt.id, field="answer")
    check_forward(policy, prompts, processes)
    return _trainer(job, SFTTrainer, policy, data, validation, processes)


def _texts(job: TrainSFT, prompts: Sequence[Prompt], policy: Policy, file: str | None) -> list[Demonstration]:
    try:
        return whole_texts(prompts, policy, job.max_answer_tokens)
    except DataError as error:
        raise error.at(file=file) from None


def _trainer(
    job: TrainSFT,
    kind: type[SomeTrainer],
    policy: Policy,
    data: Sequence[Demonstration],
    validation: Sequence[Prompt],
    processes: Processes,
) -> SomeTrainer:
    return kind(
        policy,
        data,
        validation,
        SFTSettings(
            job.batch_size,
            job.micro_batch_size,
            job.dropout,
            job.max_answer_tokens,
            job.validation_batch_size,
        ),
        job.optimizer,
        job.steps(len(data)),
        processes,
        seed=job.seed,
        segmenter=job.segmenter,
        monitor=job.monitor,
    )
