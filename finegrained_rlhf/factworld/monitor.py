"""FactWorld's oracle as the evaluation sees it: counts of true errors of any answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.factworld.oracle import Judgement, judge_answer, pool
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter


class FactWorldOracle:
    """True error rates by the oracle; satisfies `inference.config.ResponseMonitor`, as evaluation and PPO ask.

    Args:
        segmenter: spaCy pipeline that cuts the answers (`rules` needs no model).
    """

    def __init__(self, segmenter: str = DEFAULT_SEGMENTER) -> None:
        self._segmenter = SpacySegmenter(segmenter)

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(found, of how many) over R responses, by rate; a rate is the first number over the second.

        - `relevance_error_rate`: sub-sentences with a C1 error, of all sub-sentences;
        - `factual_error_rate`: sentences with a C2 error, of all but those whose only error is C1;
        - `completeness`: asked facts given, whatever their value, of all asked;
        - `correct_share`: asked facts given with the passages' value, of all asked.

        Raises:
            DataError: a question or its passages do not follow the world's grammar.
        """
        rates = pool(self._judge(prompt, text) for prompt, text in zip(prompts, responses, strict=True))
        return {
            "relevance_error_rate": (rates.relevance_errors, rates.sub_sentences),
            "factual_error_rate": (rates.factual_errors, rates.sentences),
            "completeness": (rates.given, rates.asked),
            "correct_share": (rates.correct, rates.asked),
        }

    def _judge(self, prompt: Prompt, response: str) -> Judgement:
        known = prompt.metadata
        try:
            return judge_answer(known["question"], known["passages"], response, self._segmenter)
        except DataError as error:
            raise error.at(record=prompt.id) from None
