"""Training DIALKI: its losses, validation by answers, and what is left of a run. BERTQA trains by the same steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.finder import Finder, Found, KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import passages_to_train
from finegrained_rlhf.dialki.inputs.examples import EncodedExample
from finegrained_rlhf.dialki.model.model import DialkiModel, KnowledgeModel, load_model, read_record
from finegrained_rlhf.dialki.model.objective import loss_means, objective
from finegrained_rlhf.dialki.model.search import SearchConfig, Threshold, tune_threshold
from finegrained_rlhf.dialki.scores import Coverage, KnowledgeScore, length_edges, score_answer, summaries, summary
from finegrained_rlhf.dialki.training.job import DialkiBatchConfig, TrainDialki
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.supervised.trainer import AdditiveTrainer, SupervisedModelTrainer


class KnowledgeTrainer(AdditiveTrainer[Any], SupervisedModelTrainer[Any]):
    """Trains a model that finds knowledge on labelled dialogues: what DIALKI and BERTQA do alike.

    The loss is the mean over the dialogues of a step. Which passages and which noise a dialogue meets follows from the
    seed, the step and the dialogue.

    Args:
        job: sizes, losses and noise, optimizer.
        model: to train.
        train: dialogues with gold as the finder's encoder made them, at least one.
        validation: dialogues with gold in their records, made alike; may be empty.
        processes: of the run.
        report: what was read and what did not fit, ready for JSON.
    """

    job: TrainDialki
    speed: ClassVar[str] = "time/examples_per_s"

    def __init__(
        self,
        job: TrainDialki,
        model: KnowledgeModel,
        train: Sequence[Any],
        validation: Sequence[Any],
        processes: Processes,
        report: Mapping[str, Any] | None = None,
    ) -> None:
        self.finder, self.report = self.new_finder(model, processes, job.batches), dict(report or {})
        super().__init__(job, self.finder.model, train, validation, processes)

    @staticmethod
    @abstractmethod
    def new_finder(model: Any, processes: Processes, batches: DialkiBatchConfig) -> Finder[Any]:
        """What answers the validation dialogues."""

    def measured(self) -> dict[str, float]:
        """Exact match, F1 and passage accuracy on the validation dialogues."""
        return summary([score for _, score in self.answers()])

    def score(self, metrics: Mapping[str, float]) -> float:
        """The exact match; with `units` whole, where an answer is a passage, the passage accuracy."""
        return metrics["passage_accuracy" if self.model.config.units == "whole" else "exact_match"]

    def answers(self) -> list[tuple[Found, KnowledgeScore]]:
        """The answer to every validation dialogue with its score, in order, in every process."""
        share = [self.validation[i] for i in self.processes.share(len(self.validation))]
        size = self.job.batches.eval_batch_size
        scored: list[tuple[Found, KnowledgeScore]] = []
        for start in range(0, len(share), size):
            part = share[start : start + size]
            for item, answer in zip(part, self.finder.answer(part), strict=True):
                scored.append((answer, score_answer(item.record, answer.knowledge.passage, answer.text)))
        return self.processes.gather_objects(scored)

    def finish(self, result: LoopResult, run: RunDirectory) -> None:
        """Answer the validation dialogues by the exported model; write `metrics.json`, and γ into that model."""
        best: Any = self.copy_of(self.model, run.final("model")).to(self.processes.device)
        self.model = self.finder.model = best
        answers = self.answers()
        threshold = tuned(self.validation, [answer for answer, _ in answers], best.config.search)
        if self.processes.is_main:
            searched = Coverage.of(answer.coverage for answer, _ in answers)
            searched.warn()
            groups = summaries(
                [item.record for item in self.validation],
                [score for _, score in answers],
                [item.document_length for item in self.validation],
                edges := length_edges(self.job.format),
            )
            if threshold is not None and best.config.threshold != threshold.value:
                best.config = replace(best.config, threshold=threshold.value)
                self.save_again(run.final("model"))
            run.write_results(
                {
                    "best_step": result.best_step,
                    "steps": result.step,
                    "train_examples": len(self.data),
                    "validation": groups,
                    "edges": {name: list(numbers) for name, numbers in edges.items()},
                    "searched": searched.to_json(),
                    "threshold": None if threshold is None else {"gamma": threshold.value, "passage_f1": threshold.f1},
                    "data": self.report,
                },
            )
            shown = {name: groups["all"][name] for name in ("exact_match", "f1", "passage_accuracy")} if groups else {}
            text = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in shown.items())
            print(f"{self.job.dialki.system}: best at step {result.best_step}, validation: {text or 'none'}")
        self.processes.barrier()

    @staticmethod
    def copy_of(model: Any, directory: Path) -> KnowledgeModel:
        """The finder of knowledge that was saved in `directory`."""
        return load_model(directory, read_record(directory, type(model.config)), type(model))


class DialkiTrainer(KnowledgeTrainer):
    """Trains DIALKI, and Multi-Sentence: the model decides which."""

    sums: ClassVar[int] = 9

    @staticmethod
    def new_finder(model: DialkiModel, processes: Processes, batches: DialkiBatchConfig) -> KnowledgeFinder:
        """The finder of a DIALKI."""
        return KnowledgeFinder(model, processes, batches.eval_batch_size, batches.group_size)

    def objective(self, examples: Sequence[EncodedExample], count: float, step: int) -> tuple[Tensor, Tensor]:
        """L_next + α L_hist + β L_adv on a passage with gold and others without; [9] as `loss_means` takes them."""
        job, seed = self.job, self.job.seed
        chosen = [passages_to_train(one, job.batches.passages, seed, step, job.losses.gold) for one in examples]
        noise = stable_hash(seed, "noise", step)
        loss, sums = objective(self.model, chosen, job.losses, noise, job.batches.group_size)
        return loss / count, sums

    def means(self, sums: Tensor) -> dict[str, float]:
        """Losses and accuracy a dialogue."""
        return loss_means(sums)


def tuned(items: Sequence[Any], answers: Sequence[Found], search: SearchConfig) -> Threshold | None:
    """γ tuned on answered dialogues: the highest mean F1 of the sets of passages (`tune_threshold`).

    Args:
        items: encoded dialogues with gold.
        answers: their answers.
        search: passages of an answer at most, and what γ is compared with.
    """
    gold = []
    for item, answer in zip(items, answers, strict=True):
        place = {passage: m for m, passage in enumerate(answer.searched)}
        # gold passages out of reach count as missed: no place is negative
        gold.append(frozenset(place.get(k.passage, -1 - k.passage) for k in item.record.gold))
    scores = [answer.scores(search.select_by) for answer in answers]
    return tune_threshold(scores, gold, search.most, select_by=search.select_by)
