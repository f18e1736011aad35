"""Training a policy on pairs of a draft and what became of it: DPO and its kin, with the likelihood of both answers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import ClassVar

import torch
from torch import Tensor

from finegrained_lab.experiments.personalization.pairs import TrainPairs
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt, on_device, pad_rows
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rl.preference import preference_losses
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.plain_text import plain_token_ids
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.sft.trainer import SFTTrainer
from finegrained_rlhf.training.supervised.trainer import warn_of_cut

_AT_ONCE = 64
_NAMES = ("chosen", "rejected")


@dataclass(frozen=True)
class AnswerPair:
    """A prompt with a preferred and another answer.

    Attributes:
        prompt: the input.
        answers: token ids of both, the preferred one first, each with the end of sequence last.
        compared: of each token of both, whether it is compared.
        reference: log π_ref of the compared tokens of both, summed, in nats.
    """

    prompt: Prompt
    answers: tuple[tuple[int, ...], tuple[int, ...]]
    compared: tuple[tuple[bool, ...], tuple[bool, ...]]
    reference: tuple[float, float] = (0.0, 0.0)


def changed_tokens(chosen: Sequence[int], rejected: Sequence[int]) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
    """Of each token of two answers, whether it lies in a block in which they differ."""
    flags = ([False] * len(chosen), [False] * len(rejected))
    for name, i1, i2, j1, j2 in SequenceMatcher(None, chosen, rejected, autojunk=False).get_opcodes():
        if name != "equal":
            flags[0][i1:i2], flags[1][j1:j2] = [True] * (i2 - i1), [True] * (j2 - j1)
    return tuple(flags[0]), tuple(flags[1])


def pair_logprobs(policy: Policy, pairs: Sequence[AnswerPair]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of n pairs, fp32 [n, 2]: of the compared tokens, of all tokens, and how many these are."""
    rows = [ids for pair in pairs for ids in pair.answers]
    ids, mask = (on_device(part, policy.device) for part in pad_rows(rows, policy.pad_id))
    flags = [[int(flag) for flag in row] for pair in pairs for row in pair.compared]
    compared = on_device(pad_rows(flags, 0)[0], policy.device)
    index = torch.arange(len(pairs), device=policy.device).repeat_interleave(2)
    memory = policy.encode([pair.prompt for pair in pairs])
    logprobs = policy.logprobs(memory, index, ids, mask).logprobs
    sums = ((logprobs * compared).sum(dim=1), logprobs.sum(dim=1), mask.sum(dim=1).float())
    return sums[0].view(-1, 2), sums[1].view(-1, 2), sums[2].view(-1, 2)


class PairTrainer(SFTTrainer):
    """Trains a policy on pairs; see `SupervisedTrainer`. Validation is that of SFT: greedy answers, by RougeLSum."""

    job: TrainPairs
    sums: ClassVar[int] = 7

    @property
    def in_rows(self) -> bool:
        """Pairs are compared, not laid in rows."""
        return False

    def objective(self, examples: Sequence[AnswerPair], count: float, step: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The loss, and [7]: itself, pairs, right ones; log π of both answers, and how far each has moved."""
        compared, whole, lengths = pair_logprobs(self.policy, examples)
        known = torch.tensor([pair.reference for pair in examples], device=compared.device)
        moved = compared - known
        beta, positive = self.job.beta, self.job.positive
        losses = preference_losses(*compared.T, *known.T, beta=beta, positive=positive)
        if self.job.sft:
            losses = losses - self.job.sft * whole[:, 0] / lengths[:, 0]
        loss = losses.sum() / count
        right = (moved[:, 0] > moved[:, 1]).sum().float()
        seen = [loss, loss.new_tensor(float(len(examples))), right, *whole.sum(dim=0), *moved.sum(dim=0)]
        return loss, torch.stack([one.detach() for one in seen])

    def means(self, sums: Tensor) -> dict[str, float]:
        """Loss, share of pairs in the right order, and of both answers log π and its change, in nats an answer."""
        loss, pairs, right, *rest = sums.tolist()
        names = [f"{what}/{name}" for what in ("logprob", "moved") for name in _NAMES]
        return {"loss": loss, "accuracy": right / pairs, **{n: v / pairs for n, v in zip(names, rest, strict=True)}}

    def count(self, batch: Sequence[AnswerPair]) -> int:  # type: ignore[override]
        """Pairs."""
        return len(batch)

    def length(self, example: AnswerPair) -> int:  # type: ignore[override]
        """Tokens of the prompt and both answers."""
        return len(example.prompt.input_ids) + sum(map(len, example.answers))


def answer_pairs(job: TrainPairs, prompts: Sequence[Prompt], policy: Policy) -> list[AnswerPair]:
    """The first two answers of each prompt, with the reference's log-probabilities.

    Raises:
        DataError: a prompt has not two answers.
    """
    coin, lengths = random.Random(stable_hash(job.seed, "turned pairs")), list[int]()
    pairs: list[AnswerPair] = []
    for prompt in prompts:
        if len(prompt.metadata.get("references") or ()) < 2:
            raise DataError("expected the preferred answer and another one", record=prompt.id, field="answer")
        rows = plain_token_ids(policy.tokenizer, list(prompt.metadata["references"][:2]))
        lengths += [len(row) for row in rows]
        first, second = ((*row[: job.max_answer_tokens - 1], policy.eos_ids[0]) for row in rows)
        turned = job.shuffle and coin.random() < 0.5
        answers = (second, first) if turned else (first, second)
        everything = tuple((True,) * len(answer) for answer in answers)
        compared = changed_tokens(*answers) if job.spans else (everything[0], everything[1])
        pairs.append(AnswerPair(prompt, answers, compared))
    warn_of_cut("answers", lengths, job.max_answer_tokens)
    check_vocabulary(policy, [ids for pair in pairs for ids in pair.answers])
    known: list[tuple[float, float]] = []
    with torch.no_grad():
        for start in range(0, len(pairs), _AT_ONCE):
            found = pair_logprobs(policy, pairs[start : start + _AT_ONCE])[0].tolist()
            known += [(row[0], row[1]) for row in found]
    return [replace(pair, reference=reference) for pair, reference in zip(pairs, known, strict=True)]


def assemble_pairs(job: TrainPairs, processes: Processes) -> PairTrainer:
    """Load the policy, which is its own reference, and read the pairs."""
    policy = job.policy.load(processes.loading_device)
    limits = job.max_prompt_tokens, job.prompt_too_long, job.prompt
    prompts = prompts_for(policy, job.data, *limits)
    validation = [] if not job.validation_data else prompts_for(policy, job.validation_data, *limits)
    check_forward(policy, prompts, processes)
    policy.to(processes.device)
    data: Sequence[AnswerPair] = answer_pairs(job, prompts, policy.eval())
    return PairTrainer(job, policy, data, validation[: job.validation_prompts], processes)  # type: ignore[arg-type]
