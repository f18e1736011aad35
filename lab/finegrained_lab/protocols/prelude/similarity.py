"""BERTScore as the similarity of two preferences, which the paper takes (Zhang et al. 2020).

The package bert-score is imported when it is first asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least


@dataclass(frozen=True)
class BertScore(Settings):
    """F1 of BERTScore of two texts; the first is the candidate.

    Attributes:
        model_type: a model's directory, or its name on the Hub; bert-score's default for English is roberta-large.
        layer: whose vectors are compared, counted from 1; None is the package's choice, which it knows of names alone.
        device: cpu or cuda; None is a GPU where there is one.
    """

    model_type: str = "roberta-large"
    layer: Annotated[int | None, at_least(1)] = None
    device: str | None = None

    @cached_property
    def _scorer(self) -> Any:
        try:
            package = import_module("bert_score")
        except ImportError:
            raise ConfigError(
                "similarity: bert-score is not installed: pip install -e '.[bertscore]' in a checkout"
            ) from None
        try:
            return package.BERTScorer(model_type=self.model_type, num_layers=self.layer, device=self.device)
        except (KeyError, OSError, ValueError, AssertionError) as error:
            hint = "; a directory needs layer" if self.layer is None else ""
            raise ModelError(
                f"{self.model_type}: bert-score cannot load it ({type(error).__name__}: {error}){hint}"
            ) from None

    def __call__(self, left: str, right: str) -> float:
        """F1 of `left` as candidate and `right` as reference.

        Raises:
            ConfigError: bert-score is not installed.
            ModelError: it cannot load the model.
        """
        _, _, scores = self._scorer.score([left], [right])
        return float(scores[0])
