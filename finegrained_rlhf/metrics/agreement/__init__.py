"""How far people who judged the same answers agree: labels of segments, spans, sets, corrections and rankings.

Knows labels, offsets, texts and ranks. Knows no annotator, no file, no taxonomy and no model. What a formula leaves
undefined is None.
"""

from finegrained_rlhf.metrics.agreement.bootstrap import BootstrapInterval, bootstrap_interval
from finegrained_rlhf.metrics.agreement.counts import MatchCounts, mean_f1, pooled_f1
from finegrained_rlhf.metrics.agreement.nominal import cohen_kappa, krippendorff_alpha, percent_agreement, prevalence
from finegrained_rlhf.metrics.agreement.rankings import (
    OrderConsistency,
    mean_kendall_tau_b,
    order_consistency,
    preference_kappa,
    ranks_to_preferences,
)
from finegrained_rlhf.metrics.agreement.sets import correction_f1, set_f1, set_matches
from finegrained_rlhf.metrics.agreement.shown_order import OrderBias, binomial_p, order_bias
from finegrained_rlhf.metrics.agreement.spans import (
    MarkedSpan,
    character_matches,
    exact_matches,
    matches_by_type,
    overlap_matches,
)

__all__ = [
    "BootstrapInterval",
    "MarkedSpan",
    "MatchCounts",
    "OrderBias",
    "OrderConsistency",
    "binomial_p",
    "bootstrap_interval",
    "character_matches",
    "cohen_kappa",
    "correction_f1",
    "exact_matches",
    "krippendorff_alpha",
    "matches_by_type",
    "mean_f1",
    "mean_kendall_tau_b",
    "order_bias",
    "order_consistency",
    "overlap_matches",
    "percent_agreement",
    "pooled_f1",
    "preference_kappa",
    "prevalence",
    "ranks_to_preferences",
    "set_f1",
    "set_matches",
]
