"""FactWorld's oracle as the evaluation sees it: counts of true errors of any answer.

Knows the oracle and the names of the rates. Knows no policy, no reward model and no file.
"""

from __future__ import annotations

from collections.abc import Mapping

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.tasks.factworld.oracle import judge_answer
from finegrained_rlhf.text.segmentation import SpacySegmenter


class FactWorldOracle:
    """True error rates by the oracle; satisfies `training.evaluation.Oracle`.

    Args:
        segmenter: spaCy pipeline that cuts the answers (`rules` needs no model).
    """

    def __init__(self, segmenter: str = "rules") -> None:
        self._segmenter = SpacySegmenter(segmenter)

    def count(self, prompt: Prompt, response: str) -> Mapping[str, tuple[int, int]]:
        """(found, of how many) of one response, by rate.

        - `relevance_error_rate`: sub-sentences with a C1 error, of all sub-sentences;
        - `factual_error_rate`: sentences with a C2 error, of all but those whose only error is C1;
        - `completeness`: asked facts given, whatever their value, of all asked;
        - `correct_share`: asked facts given with the passages' value, of all asked.

        Raises:
            DataError: the question or the passages do not follow the world's grammar.
        """
        judged = judge_answer(prompt.metadata["question"], prompt.metadata["passages"], response, self._segmenter)
        asked = len(judged.asked)
        return {
            "relevance_error_rate": (judged.relevance_errors, len(judged.sub_sentences)),
            "factual_error_rate": (judged.factual_errors, judged.judged_sentences),
            "completeness": (sum(judged.given), asked),
            "correct_share": (sum(judged.correct), asked),
        }
