"""Table 6.1 of the thesis: its systems, and what it says of them."""

from __future__ import annotations

from finegrained_lab.experiments.comparison import Claim

BASE, WORDS, BEST, GEDI, DEXPERTS = "base", "word_list", "best_of", "gedi", "dexperts"
FINE, HOLISTIC, RLOO = "fine_grained", "holistic", "rloo_dense"


def table_6_1(toxicity: str, perplexity: str, variety: str) -> tuple[Claim, ...]:
    """The orders of the table, with the thesis's numbers.

    Args:
        toxicity: the column of the average maximum.
        perplexity: that of the perplexity.
        variety: that of dist-2.
    """
    where = "table 6.1"
    return (
        Claim("F.G. RLHF is less toxic than Hol. RLHF", where, toxicity, FINE, "<", HOLISTIC, (0.081, 0.130)),
        Claim("Hol. RLHF is less toxic than GPT-2", where, toxicity, HOLISTIC, "<", BASE, (0.130, 0.192)),
        Claim("Hol. RLHF is less toxic than DExperts", where, toxicity, HOLISTIC, "<", DEXPERTS, (0.130, 0.136)),
        Claim("… than GeDi", where, toxicity, HOLISTIC, "<", GEDI, (0.130, 0.154)),
        Claim("DExperts is less toxic than GeDi", where, toxicity, DEXPERTS, "<", GEDI, (0.136, 0.154)),
        Claim("GeDi is less toxic than GPT-2", where, toxicity, GEDI, "<", BASE, (0.154, 0.192)),
        Claim("F.G. RLHF is more fluent than Hol. RLHF", where, perplexity, FINE, "<", HOLISTIC, (9.77, 11.75)),
        Claim("Hol. RLHF is more fluent than DExperts", where, perplexity, HOLISTIC, "<", DEXPERTS, (11.75, 22.83)),
        Claim("DExperts is more fluent than GeDi", where, perplexity, DEXPERTS, "<", GEDI, (22.83, 24.78)),
        Claim("F.G. RLHF is the more varied (dist-2)", where, variety, FINE, ">", HOLISTIC, (0.949, 0.943)),
    )
