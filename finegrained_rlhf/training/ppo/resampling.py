"""Other prompts in place of those whose responses teach nothing, and which responses a step is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from finegrained_rlhf.core.records import Rollout, SegmentScores
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.credit import Prefixes
from finegrained_rlhf.rollout.assembly import join_rollouts, take_prompts
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.drawing import StepDraws
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.training.ppo.spread import without_advantage

Scores = Mapping[str, SegmentScores]


@dataclass(frozen=True)
class Drawn:
    """The responses that a step is trained on.

    Attributes:
        rollout: of this process.
        scores: what every component gave them.
        every: what it gave all responses that this process drew in the step, also those that were replaced.
        further: prompts that were drawn in place of others, over all processes.
        teaching: prompts of the step whose responses have advantages, over all processes; None where nobody asked.
    """

    rollout: Rollout
    scores: Scores
    every: Scores
    further: int = 0
    teaching: int | None = None


class Resampler:
    """Draws other prompts for those whose responses have no advantage: dynamic sampling (DAPO, arXiv 2503.14476).

    Asked is not whether outcomes differ but whether advantages do: as the algorithm makes them, after normalisation,
    credit and masking, the KL penalty and what is subtracted over the batch left aside. A round draws one prompt for
    each that taught nothing, slot by slot in the order of the step's prompts, until all teach, the rounds are used up
    or there is no further prompt. What is left then stays, and teaches nothing.

    Args:
        draws: of the run.
        composer: makes rewards; what it keeps from step to step is left as it was.
        config: sampling settings.
        ppo: settings of the update.
        algorithm: makes advantages.
        processes: of the run.
        eos_ids: the policy's ends of sequence.
    """

    def __init__(
        self,
        draws: StepDraws,
        composer: RewardComposer,
        config: RolloutConfig,
        ppo: PPOConfig,
        algorithm: AdvantageEstimator,
        processes: Processes,
        eos_ids: Sequence[int],
    ) -> None:
        self._draws, self._composer, self._config, self._eos_ids = draws, composer, config, eos_ids
        self._algorithm, self._processes = algorithm, processes
        self._ppo = replace(ppo, kl=replace(ppo.kl, place="loss"))  # rewards without the penalty

    def fill(
        self,
        step: int,
        rollout: Rollout,
        score: Callable[[Rollout], Scores],
        score_prefixes: Callable[[Rollout], Prefixes | None],
    ) -> Drawn:
        """The responses of a step after all rounds; every process must call this.

        Args:
            step: the training step.
            rollout: the first draw of this process.
            score: gives responses their scores.
            score_prefixes: gives the scores of their prefixes; None where the reward asks for none.
        """
        scores = score(rollout)
        rounds, count = self._config.resample, self._config.prompts_per_step
        if not rounds:
            return Drawn(rollout, scores, scores)
        share, parts, every = self._processes.share(count), [rollout], scores
        others, further = self._draws.others(step, rounds * count), 0
        slots, places = list(share), {slot: place for place, slot in enumerate(share)}  # among the prompts of all parts
        unserved: list[int] = []
        while True:
            nothing = self._teaches_nothing(step, parts[-1], scores, score_prefixes(parts[-1]), every)
            alike_here = [slot for slot, alike in zip(slots, nothing, strict=True) if alike]
            left = self._processes.gather_objects(alike_here) + unserved
            served = dict(zip(left, others[further:], strict=False)) if len(parts) <= rounds else {}
            if not served:
                break
            unserved, further = left[len(served) :], further + len(served)
            slots = [slot for slot in share if slot in served]
            before = sum(len(part.prompts) for part in parts)
            places |= {slot: before + number for number, slot in enumerate(slots)}
            parts.append(self._draws.draw([served[slot] for slot in slots], self._config.decoding(), step))
            scores = score(parts[-1])
            every = {name: joined_scores([every[name], scores[name]]) for name in every}
        chosen, samples = [places[slot] for slot in share], self._config.samples_per_prompt
        rows = [prompt * samples + sample for prompt in chosen for sample in range(samples)]
        return Drawn(
            take_prompts(join_rollouts(parts, self._draws.sampler.pad_id), chosen) if further else rollout,
            {name: _rows_of(every[name], rows) for name in every} if further else scores,
            every,
            further,
            count - len(left),
        )

    def _teaches_nothing(
        self, step: int, rollout: Rollout, scores: Scores, prefixes: Prefixes | None, every: Scores
    ) -> list[bool]:
        """Whether no response has an advantage, prompt by prompt."""
        kept = self._composer.state()
        trace = self._composer.compose(rollout, scores, prefixes=prefixes, step=step, drawn=every)
        self._composer.load_state(kept)
        experience = make_experience(
            rollout,
            trace,
            rollout.logprobs,
            None,
            beta=0.0,
            config=self._ppo,
            reduce=self._processes.sum_,
            algorithm=self._algorithm,
            masked=self._config.masked(rollout, self._eos_ids),
        )
        return without_advantage(experience)


def joined_scores(parts: Sequence[SegmentScores]) -> SegmentScores:
    """The scores of several lots of responses as one; a lot without a response knows nothing of `whole_response`."""
    starts = [sum(len(part.spans) for part in parts[:number]) for number in range(len(parts))]
    names = dict.fromkeys(name for part in parts for name in part.counts)
    return SegmentScores(
        [spans for part in parts for spans in part.spans],
        [values for part in parts for values in part.values],
        any(part.whole_response for part in parts),
        frozenset(start + row for start, part in zip(starts, parts, strict=True) for row in part.unscored),
        {name: sum(part.counts.get(name, 0.0) for part in parts) for name in names},
    )


def _rows_of(scores: SegmentScores, rows: Sequence[int]) -> SegmentScores:
    """The scores of some responses; what was counted stays that of all."""
    return replace(
        scores,
        spans=[scores.spans[row] for row in rows],
        values=[scores.values[row] for row in rows],
        unscored=frozenset(place for place, row in enumerate(rows) if row in scores.unscored),
    )
