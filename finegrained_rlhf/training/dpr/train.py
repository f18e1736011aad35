"""How the training of two towers is put together and carried out: what the methods of `TrainDPR` do."""

from __future__ import annotations

import math

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.encoders.towers import TwoTowers
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.dpr.batches import DprSet
from finegrained_rlhf.training.dpr.job import TrainDPR
from finegrained_rlhf.training.dpr.records import read_dpr_records
from finegrained_rlhf.training.dpr.trainer import DprTrainer, DprValidation


def train_dpr(job: TrainDPR, built: DprTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
    """Run the loop, export the best towers and write what they reach on the validation queries."""
    examples, held_out = len(built.train.examples), len(built.validation.data.examples)
    epoch = max(1, math.ceil(examples / job.batches.batch_size))
    loop = job.loop_settings(job.steps(examples), epoch=epoch, validates=bool(held_out))
    result = job.fit(built, loop, processes, run)
    built.model = DprTrainer.copy_of(built.model, run.final(job.export)).to(processes.device)
    dev = built.measure()
    if processes.is_main:
        run.write_results(
            {
                "best_step": result.best_step,
                "steps": result.step,
                "train_examples": examples,
                "train_passages": len(built.train.passages),
                "dev_examples": held_out,
                "dev": dev,
            }
        )
        shown = ", ".join(f"{name} {value:.3f}" for name, value in dev.items() if name != "passages")
        print(f"towers: best at step {result.best_step}, dev {shown or 'not measured'}")
    processes.barrier()
    return result


def assemble_dpr(job: TrainDPR, processes: Processes, run: RunDirectory) -> DprTrainer:
    """Read queries and passages, open both towers and check that they can read them."""
    records = read_dpr_records(job.data)
    held_out = [] if job.validation_data is None else read_dpr_records(job.validation_data)
    towers = TwoTowers.open(job.query_model, job.passage_model, job.max_query_tokens, job.max_passage_tokens)
    train, validation = DprSet.of(records, towers), DprSet.of(held_out, towers)
    if len(train.passages) < 2:
        raise DataError("holds one passage alone, expected two or more to tell apart", file=job.data)
    check_vocabulary(towers.query, [one.ids for one in (*train.examples, *validation.examples)])
    check_vocabulary(towers.passage, [*train.passages, *validation.passages])
    towers.passage.requires_grad_(not job.freeze_passages)
    if job.dropout is not None:
        set_dropout(towers, job.dropout)
    steps = job.steps(len(records))
    from_step = math.ceil(job.best_from_epoch * len(records) / job.batches.batch_size)
    if from_step > steps:
        raise ConfigError(f"best_from_epoch: expected at most {steps} steps, got {from_step}")
    return DprTrainer(
        towers,
        train,
        DprValidation(validation, job.validation_negatives, from_step, job.selected_by),
        job.sampling,
        job.batches,
        job.optimizer,
        steps,
        processes,
        seed=job.seed,
    )
