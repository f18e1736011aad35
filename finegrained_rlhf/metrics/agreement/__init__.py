"""How far people who judged the same answers agree: labels of segments, spans, sets, corrections and rankings.

Knows labels, offsets, texts and ranks. Knows no annotator, no file, no taxonomy and no model. What a formula leaves
undefined is None.
"""

from finegrained_rlhf.metrics.agreement.matches import (
    MarkedSpan,
    MatchCounts,
    character_matches,
    correction_f1,
    exact_matches,
    matches_by_type,
    overlap_matches,
    pooled_f1,
    set_matches,
)
from finegrained_rlhf.metrics.agreement.nominal import cohen_kappa, krippendorff_alpha, percent_agreement, prevalence
from finegrained_rlhf.metrics.agreement.rankings import (
    OrderBias,
    mean_kendall_tau_b,
    order_bias,
)
from finegrained_rlhf.metrics.significance import BootstrapInterval, bootstrap_interval

__all__ = [
    "BootstrapInterval",
    "MarkedSpan",
    "MatchCounts",
    "OrderBias",
    "bootstrap_interval",
    "character_matches",
    "cohen_kappa",
    "correction_f1",
    "exact_matches",
    "krippendorff_alpha",
    "matches_by_type",
    "mean_kendall_tau_b",
    "order_bias",
    "overlap_matches",
    "percent_agreement",
    "pooled_f1",
    "prevalence",
    "set_matches",
]
