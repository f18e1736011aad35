"""How supervised fine-tuning is put together and carried out: what the methods of `TrainSFT` do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TypeVar

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.inputs.prompts import prompts_for
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.sft.job import TrainSFT
from finegrained_rlhf.training.sft.texts import WholeTextTrainer, whole_texts
from finegrained_rlhf.training.sft.trainer import Demonstration, SFTSettings, SFTTrainer, demonstrations

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
