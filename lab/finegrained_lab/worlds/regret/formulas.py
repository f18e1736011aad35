"""Expected numbers of errors in the world of `rounds.py`, computed exactly, and the bounds that the paper states.

Nothing here is simulated. Source of the bounds: Liang et al. 2026, section 3.3 and appendix A.
"""

from __future__ import annotations

from collections.abc import Sequence


def geometric_residual(ratio: float, arity: int, questions: int) -> float:
    """Error of the best guess after k questions, of P(h) = (1 − r) rʰ, h = 0, 1, …: r^(mᵏ).

    The questions are the digits of h to base m, the lowest first. What is consistent with the answers is geometric
    again, with ratio r^(mᵏ), and its smallest member is the best guess. With r^(m−1) ≤ 1/m every answer leaves at most
    a share 1/m of the wrong mass, which is the paper's assumption A1.
    """
    return float(ratio ** (arity**questions))


def uniform_residual(size: int, arity: int, questions: int) -> float:
    """Error of the best guess after k questions, of n hypotheses that are equally likely: 1 − min(mᵏ, n) / n.

    The questions are as balanced as can be. The wrong mass goes from (n − 1)/n to (n − m)/n with the first one,
    which is more than a share 1/m of it as soon as n > m + 1: A1 does not hold.
    """
    return 1.0 - min(arity**questions, size) / size


def power_law_residual(mass: float, arity: int, questions: int) -> float:
    """Error of the best guess after k questions where every question leaves exactly 1/m of the wrong mass: q m⁻ᵏ.

    Of P(0) = 1 − q and P(h) = q m^(−2j−1) for mʲ ≤ h < m^(j+1), which falls with h where q ≤ m / (m + 1): P(h ≥ mᵏ) is
    q m⁻ᵏ. The paper's assumption A1 holds with equality, and its rate is reached.
    """
    return mass * float(arity) ** -questions


def shrinks(before: float, after: float, arity: int) -> bool:
    """Whether one question does what A1 asks: after ≤ before / m."""
    return after <= before / arity + 1e-12


def stale_error(options: int, switches: int) -> float:
    """Probability that an action that was right is wrong after j switches, each to another of n options at random.

    P(right) = 1/n + (1 − 1/n) (−1/(n − 1))ʲ.
    """
    right = 1 / options + (1 - 1 / options) * (-1 / (options - 1)) ** switches
    return 1.0 - right


def kept_errors(lengths: Sequence[int], options: int, rate: float) -> float:
    """Errors of who keeps the first preference: Σ_j rate · length_j · P(it is wrong after j switches).

    Args:
        lengths: rounds of each segment between switches, the first before any.
        options: n.
        rate: share of rounds that are not ambiguous.
    """
    return sum(rate * length * stale_error(options, j) for j, length in enumerate(lengths))


def corrected_errors(lengths: Sequence[int], slots: int, rate: float, options: int, patience: int = 1) -> float:
    """Errors of who is corrected, situation by situation, with a memory that is right before the first switch.

    In a segment of ℓ rounds a situation is met X ~ Binomial(ℓ, rate / S) times. Where the memory of it is wrong, the
    first `patience` meetings are errors, and then it is right. A switch makes a right memory wrong, and one that is
    still wrong right with probability 1/(n − 1), as the preference may come back to it. The probabilities of a wrong
    memory, after no error and after one, go from segment to segment.

    Args:
        lengths: rounds of each segment after a switch.
        slots: S, equally likely.
        rate: share of rounds that are not ambiguous.
        options: n.
        patience: errors in a situation after which it is corrected, 1 or 2.

    Raises:
        ValueError: another patience.
    """
    if patience not in (1, 2):
        raise ValueError(f"expected a patience of 1 or 2, got {patience}")
    share, back, total = rate / slots, 1 / (options - 1), 0.0
    right, warned = 1.0, 0.0  # P(right, after no error), P(right, after one)
    wrong, doubted = 0.0, 0.0  # P(wrong, after no error), P(wrong, after one)
    for length in lengths:
        right, wrong = wrong * back, right + wrong * (1 - back)
        warned, doubted = doubted * back, warned + doubted * (1 - back)
        never = (1 - share) ** length
        once = length * share * (1 - share) ** (length - 1) if length else 0.0
        often = 1 - never - once
        if patience == 1:
            total += wrong * (1 - never)
            right, wrong = right + wrong * (1 - never), wrong * never
        else:
            total += wrong * (once + 2 * often) + doubted * (1 - never)
            right += wrong * often + doubted * (1 - never)
            wrong, doubted = wrong * never, doubted * never + wrong * once
    return slots * total


def first_meetings(slots: int, rounds: int) -> float:
    """Expected number of S equally likely situations that are met in T rounds: S (1 − (1 − 1/S)ᵀ)."""
    return slots * (1 - (1 - 1 / slots) ** rounds)


def switch_lower_bound(rounds: int) -> float:
    """Errors that nobody can avoid who does not learn when one switch came, uniform over T rounds: ⌊T²/4⌋ / T."""
    return (rounds**2 // 4) / rounds


def never_switched(rounds: int) -> float:
    """Errors of who never switches while one switch came, uniform over T rounds: (T + 1) / 2."""
    return (rounds + 1) / 2


def theorem_bound(switches: int, ambiguous: float, rounds: int, arity: int, questions: int) -> float:
    """K + γ T m⁻ᵏ, theorem 1's order with the constants of its proof."""
    return switches + ambiguous * rounds * float(arity) ** -questions


def enough_questions(rounds: int, arity: int) -> int:
    """⌈log_m T⌉, the number of questions with which theorem 1's second term is at most γ."""
    questions = 0
    while arity**questions < rounds:
        questions += 1
    return questions
