"""The cases of which docs/algorithms.md prints the expected gradient: what each is, in the page's words.

A key is `table/row`. Two samples a group unless it says otherwise; β = 0 where KL is not what is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from expected_gradients import (
    END,
    Segments,
    Setting,
    Table,
    chances,
    compared,
    earned,
    expected,
    letters,
    limit,
    paid,
    reads_on,
    true_gradient,
    whole,
    words,
)
from torch import Tensor

from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig

LONG, SHORT = Table(4), Table(3)
OTHER = {table.longest: Table(table.longest, seed=1, fifths=False).logits for table in (LONG, SHORT)}
"""Of the reference, and of another policy that draws; by length."""
NO_KL = KLConfig("loss", "k3", beta=0.0, limit=None)
PLAIN = PPOConfig(
    lambda_=1.0, whiten_rewards=False, whiten_advantages=False, loss_average="constant", kl=NO_KL, clip=1e9
)
RLOO, PROCESS = GroupAdvantages(), GroupAdvantages(credit="process")
BY = {place: GroupAdvantages(credit="returns", position=place) for place in ("segment", "token", "share")}
CREDITS = ("end", "decided", "revised")


@dataclass(frozen=True)
class Case:
    """One row: the setting, whether its error is 0, and what else is looked at.

    Attributes:
        setting: the case.
        factor: the error is 0 when the true gradient is multiplied by this; None: it is not.
        by_group: every group is a step of its own.
        many_samples: the limit of many samples a group is printed too.
    """

    setting: Setting
    factor: float | None = None
    by_group: bool = False
    many_samples: bool = False

    def numbers(self) -> dict[str, float]:
        """What the page prints."""
        true = true_gradient(self.setting)
        found = compared(*_mean(self.setting, self.by_group, true))
        if self.many_samples:
            at_limit = compared(limit(self.setting), true)
            found |= {"rescaled at the limit": at_limit["rescaled"], "cosine at the limit": at_limit["cosine"]}
        return found


def _mean(setting: Setting, by_group: bool, true: Tensor) -> tuple[Tensor, Tensor, float]:
    mean, variance = expected(setting, by_group)
    return mean, true, variance


def of(
    segments: Segments,
    credit: str,
    algorithm: AdvantageEstimator,
    table: Table = LONG,
    config: PPOConfig = PLAIN,
    **more: Any,
) -> Setting:
    """One component of weight 1."""
    if isinstance(algorithm, GAE):
        more = {"values": torch.zeros_like(table.mask, dtype=torch.float64), **more}
    return Setting(table, {"one": (1.0, paid(table, segments, credit))}, algorithm, config, **more)


def to_go(setting: Setting) -> Tensor:
    """fp64 [n, T]: what each token and those behind it earn."""
    rows = torch.zeros(setting.table.mask.shape, dtype=torch.float64)
    for weight, of_rows in setting.rewards.values():
        for row, tokens in enumerate(of_rows):
            for token, value in tokens.items():
                rows[row, token] += weight * value
    return rows.flip(1).cumsum(dim=1).flip(1)


def values_of(setting: Setting, seen: int = 0) -> Tensor:
    """fp64 [n, T]: the mean of what is earned from t on, over what can follow y_<t, or y_<t+seen."""
    table, earned_from, chance = setting.table, to_go(setting), chances(setting.table, setting)
    found = torch.zeros_like(earned_from)
    for row, response in enumerate(table.responses):
        for t in range(len(response)):
            alike = torch.tensor([y[: t + seen] == response[: t + seen] and len(y) > t for y in table.responses])
            found[row, t] = (chance * earned_from[:, t])[alike].sum() / chance[alike].sum()
    return found


def wrong_values(table: Table) -> Tensor:
    """fp64 [n, T]: of what comes before a token alone, and far from right."""
    rows = [[(3 * sum(row[:t]) - 2 * t) / 16 for t in range(table.longest)] for row in table.ids.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


def credit_cases() -> dict[str, Case]:
    """What is paid when, and what it is compared with."""
    found = {
        f"{segments.__name__}, outcome, leave-one-out": Case(of(segments, "outcome", RLOO), 1.0)
        for segments in (letters, words, reads_on, whole)
    }
    for segments in (words, reads_on):
        for credit in CREDITS:
            good = 1.0 if credit != "end" else None
            found[f"{segments.__name__}, {credit}, no baseline"] = Case(of(segments, credit, GAE()), good)
            for place, algorithm in BY.items():
                at_last = segments is reads_on and credit == "decided"  # where all is one number at the end
                right = good if place != "share" or at_last else None
                found[f"{segments.__name__}, {credit}, by {place}"] = Case(of(segments, credit, algorithm), right)
    found["letters, end, by segment"] = Case(of(letters, "end", BY["segment"]), 1.0)
    found["letters, end, by share"] = Case(of(letters, "end", BY["share"]))
    marks = [dict.fromkeys((t for t, _ in words(row)), 0.0) for row in LONG.responses]
    two = {"one": (1.0, paid(LONG, words, "decided")), "ended": (1.0, marks)}
    found["words, decided, by segments ended before t"] = Case(Setting(LONG, two, BY["segment"], PLAIN))
    for samples in (3,):
        found[f"words, decided, by segment, {samples} samples"] = Case(
            of(words, "decided", BY["segment"], SHORT, samples=samples), 1.0
        )
        found[f"reads_on, revised, by token, {samples} samples"] = Case(
            of(reads_on, "revised", BY["token"], SHORT, samples=samples), 1.0
        )
    group_mean = GroupAdvantages("group_mean", credit="returns", position="token")
    found["words, outcome, group mean"] = Case(of(words, "outcome", GroupAdvantages("group_mean")), 0.5)
    found["words, outcome, group mean, 3 samples"] = Case(
        of(words, "outcome", GroupAdvantages("group_mean"), SHORT, samples=3), 2 / 3
    )
    found["reads_on, revised, group mean by token"] = Case(of(reads_on, "revised", group_mean), 0.5)
    return found


def process_cases() -> dict[str, Case]:
    """Process supervision: of the reward, and of what it is the gradient of."""
    setting = of(words, "decided", PROCESS)
    places = setting.rewards["one"][1]  # segments that are paid at one token count as one
    chance, number = chances(LONG, setting), torch.tensor([len(row) for row in places]).double()
    mean = (chance * (earned(setting) / number.clamp(min=1))).sum()
    charged = earned(setting) - mean * number
    return {
        "of E[R]": Case(replace(setting, target=None), many_samples=True),
        "of E[R] − E[b]·E[N]": Case(replace(setting, target=charged), 1.0),
        "of E[R], group mean": Case(
            of(words, "decided", GroupAdvantages("group_mean", credit="process")), many_samples=True
        ),
    }


def value_cases() -> dict[str, Case]:
    """GAE by its value function."""

    def gae(
        lambda_: float, values: Callable[[Setting], Tensor], credit: str = "revised", discount: float = 1.0
    ) -> Setting:
        setting = of(reads_on, credit, GAE(), config=replace(PLAIN, lambda_=lambda_, discount=discount))
        return replace(setting, values=values(setting))

    def wrong(setting: Setting) -> Tensor:
        return wrong_values(setting.table)

    def half(setting: Setting) -> Tensor:
        return 0.5 * values_of(setting)

    def sees(setting: Setting) -> Tensor:
        return values_of(setting, seen=1)

    return {
        "λ = 1, a wrong value": Case(gae(1.0, wrong), 1.0),
        "λ = 1, the exact value": Case(gae(1.0, values_of), 1.0),
        "λ = 0.95, the exact value": Case(gae(0.95, values_of), 1.0),
        "λ = 0, the exact value": Case(gae(0.0, values_of), 1.0),
        "λ = 0.95, half the value": Case(gae(0.95, half)),
        "λ = 0.95, a wrong value": Case(gae(0.95, wrong)),
        "λ = 0, a wrong value": Case(gae(0.0, wrong)),
        "λ = 1, a value that sees token t": Case(gae(1.0, sees)),
        "λ = 0.95, a value that sees token t": Case(gae(0.95, sees)),
        "λ = 0.95, the exact value, paid at the segment's end": Case(gae(0.95, values_of, "end")),
        "λ = 1, γ = 0.95, the exact value of γ = 1": Case(gae(1.0, values_of, discount=0.95)),
    }


def average_cases() -> dict[str, Case]:
    """`ppo.loss_average`, leave-one-out; the average of tokens is over a step of one group, or of many."""
    found = {}
    for name, algorithm, credit in (("outcome", RLOO, "outcome"), ("returns by token", BY["token"], "revised")):
        for average in ("constant", "sequence", "token"):
            config = replace(PLAIN, loss_average=average)
            setting = of(reads_on, credit, algorithm, SHORT, config)
            exact = 1.0 if average == "constant" else None
            found[f"{name}, {average}"] = Case(setting, exact, by_group=average == "token", many_samples=True)
    token = of(reads_on, "outcome", RLOO, SHORT, replace(PLAIN, loss_average="token"), many=True)
    found["outcome, token, many prompts a step"] = Case(token)
    return found


def kl_cases() -> dict[str, Case]:
    """The KL alone: its gradient on average against that of E[Σ_t KL]. β is 1, rewards are 0."""
    nothing = [dict.fromkeys(range(len(row)), 0.0) for row in LONG.responses]
    found = {}
    near = LONG.logits + 0.05 * OTHER[4]
    places = [(place, estimator) for place in ("reward", "loss") for estimator in ("k1", "k2", "k3", "exact")]
    for where, reference in (("", OTHER[4]), (", near the reference", near)):
        for place, estimator in [*places, ("both", "exact")]:
            config = replace(PLAIN, kl=KLConfig(place, estimator, beta=1.0, limit=None))  # type: ignore[arg-type]
            setting = Setting(
                LONG, {"none": (1.0, nothing)}, GAE(), config, beta=1.0, reference=reference,
                values=torch.zeros_like(LONG.mask, dtype=torch.float64),
            )  # fmt: skip
            exact = 1.0 if (place, estimator) in {("reward", "k1"), ("both", "exact")} else None
            name = f"{estimator} in {'reward and loss' if place == 'both' else f'the {place}'}{where}"
            found[name] = Case(setting, exact)
    return found


TWO_WEIGHTS = (0.5, 0.25)


def spread_cases() -> dict[str, Case]:
    """What is divided by a spread."""
    two = {
        "letters": (TWO_WEIGHTS[0], paid(SHORT, letters, "end")),
        "whole": (TWO_WEIGHTS[1], paid(SHORT, whole, "end")),
    }
    gdpo = Setting(SHORT, two, GroupAdvantages("group_mean", "std", by_component=True, whiten=True), PLAIN, many=True)
    chance, parts = chances(SHORT, gdpo), []
    for weight, rows in two.values():
        own = torch.tensor([sum(row.values()) for row in rows], dtype=torch.float64)
        spread = (chance * (own - chance @ own) ** 2).sum().sqrt()
        parts.append(weight * own / spread)
    by_spread = replace(gdpo, target=parts[0] + parts[1], many=False, algorithm=replace(gdpo.algorithm, whiten=False))  # type: ignore[type-var]
    grpo = GroupAdvantages("group_mean", "std")
    return {
        "GRPO, outcome": Case(of(reads_on, "outcome", grpo, SHORT), many_samples=True),
        "GRPO, process": Case(of(reads_on, "end", replace(grpo, credit="process"), SHORT), many_samples=True),
        "GRPO, returns by token, revised": Case(
            of(reads_on, "revised", replace(grpo, credit="returns", position="token"), SHORT), many_samples=True
        ),
        "GDPO, outcome, of the weighted sum": Case(gdpo, many_samples=True),
        "GDPO, outcome, of Σ w R / σ": Case(by_spread, many_samples=True),
    }


def truncated_cases() -> dict[str, Case]:
    """Responses cut at the limit are in the statistics and are not learnt from."""
    cut = torch.tensor([row[-1] != END for row in SHORT.responses])
    setting = of(reads_on, "outcome", RLOO, SHORT, masked=cut)
    scores, chance = earned(setting), chances(SHORT, setting)
    factor = len(cut) / int((~cut).sum())  # the loss is divided by the rows that are learnt from
    as_baseline = torch.where(cut, chance @ scores, scores)
    return {
        "masked, of E[R] with the baseline for cut ones": Case(replace(setting, target=as_baseline), factor),
        "masked, of E[R]": Case(setting),
    }


def off_policy_cases() -> dict[str, Case]:
    """Another policy draws than is trained."""
    base = of(reads_on, "revised", GAE(), behaviour=OTHER[4])
    outcome = of(reads_on, "outcome", RLOO, behaviour=OTHER[4])
    sequence = replace(PLAIN, ratio="sequence")
    none = replace(PLAIN, lambda_=1.0)
    return {
        "importance of sequences, outcome": Case(
            replace(outcome, importance="sequence_truncate", algorithm=GAE(), values=base.values), 1.0
        ),
        "importance of sequences, revised": Case(replace(base, importance="sequence_truncate"), 1.0),
        "importance of prefixes on rewards, revised": Case(
            replace(base, importance="prefix_truncate", per_decision=True, config=none), 1.0
        ),
        "importance of prefixes on the loss, revised": Case(replace(base, importance="prefix_truncate")),
        "importance of tokens, revised": Case(replace(base, importance="token_truncate")),
        "ratio of tokens (PPO), revised": Case(base),
        "ratio of tokens (PPO), outcome, leave-one-out": Case(outcome),
        "ratio of sequences (GSPO), outcome, leave-one-out": Case(
            replace(outcome, config=replace(sequence, loss_average="sequence"))
        ),
        "ratio of sequences (GSPO-token), revised": Case(replace(base, config=sequence)),
        "CISPO, outcome, leave-one-out": Case(replace(outcome, config=replace(PLAIN, loss="cispo"))),
    }


def sampling_cases() -> dict[str, Case]:
    """Drawn at temperature 0.7."""
    return {
        "scored as drawn": Case(of(reads_on, "outcome", RLOO, drawn=0.7, scored=0.7), 1.0),
        "scored as the plain softmax": Case(of(reads_on, "outcome", RLOO, drawn=0.7)),
    }


PRESETS = ("ppo", "rloo", "grpo", "dr_grpo", "gdpo", "reinforce", "gspo", "cispo")


def _preset(name: str) -> tuple[Any, PPOConfig, float]:
    """Algorithm and update of a preset, and the temperature that it draws at."""
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    import finegrained_rlhf.launch.commands  # noqa: F401  (its search path)
    from finegrained_rlhf.rollout.config import RolloutConfig

    conf = Path(__file__).parents[2] / "conf"
    with initialize_config_dir(str(conf), version_base=None):
        job = compose("train_ppo", overrides=[f"algorithm={name}", "output_dir=x", "data=x", "validation_data=x"])
    return instantiate(job.algorithm), instantiate(job.ppo), job.rollout.get("temperature", RolloutConfig.temperature)


def preset_cases() -> dict[str, Case]:
    """Every preset of conf/algorithm at its first optimizer step, with β = 0, in steps of many prompts."""
    found = {}
    for name in PRESETS:
        algorithm, config, temperature = _preset(name)
        config = replace(config, kl=NO_KL, mini_batches=1)
        counts_steps = isinstance(algorithm, GAE) or algorithm.whiten or config.loss_average == "token"
        scored = temperature if config.score_sampling_distribution else 1.0
        credits = [("outcome", algorithm, "outcome")]
        if isinstance(algorithm, GAE):
            credits = [("end", algorithm, "end"), ("revised", algorithm, "revised")]
        else:
            for credit in ("end", "revised"):
                dense = replace(algorithm, credit="returns", position="token")  # type: ignore[type-var]
                credits.append((f"returns, {credit}", dense, credit))
        for row, estimator, credit in credits:
            setting = of(
                reads_on, credit, estimator, SHORT, config, many=counts_steps, drawn=temperature, scored=scored
            )
            if isinstance(algorithm, GAE):
                setting = replace(setting, values=values_of(setting))
            exact = {"rloo": 1.0, "dr_grpo": 0.5}.get(name) if row != "returns, end" else None
            found[f"{name}, {row}"] = Case(setting, exact, many_samples=temperature == 1.0)
    return found


TABLES: dict[str, Callable[[], dict[str, Case]]] = {
    "credit": credit_cases,
    "process": process_cases,
    "values": value_cases,
    "averages": average_cases,
    "kl": kl_cases,
    "spread": spread_cases,
    "truncated": truncated_cases,
    "off-policy": off_policy_cases,
    "sampling": sampling_cases,
    "presets": preset_cases,
}
GOLDEN = Path(__file__).parents[1] / "golden/gradients/numbers.json"
PAGE = Path(__file__).parents[2] / "docs/algorithms.md"
COLUMNS = ("error", "rescaled", "cosine", "variance", "rescaled at the limit", "cosine at the limit")


def printed(number: float | None, column: str) -> str:
    """A cell: exact zeros as such."""
    if number is None:
        return "–"
    if column in ("error", "rescaled", "rescaled at the limit"):
        return "**0**" if number < 1e-10 else f"{number:.2g}"
    return f"{number:.3f}" if column != "variance" else f"{number:.3g}"


def with_tables(page: str, numbers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The page with every table between `<!-- gradients: NAME -->` and `<!-- /gradients -->` as the numbers say."""

    def written(match: re.Match[str]) -> str:
        rows = numbers[match["name"]]
        used = [column for column in COLUMNS if any(column in row for row in rows.values())]
        cells = [{"": name, **{c: printed(row.get(c), c) for c in used}} for name, row in rows.items()]
        return f"{match['begin']}\n{markdown_table(cells, ['', *used])}{match['end']}"

    pattern = r"(?P<begin><!-- gradients: (?P<name>\S+) -->)\n.*?(?P<end><!-- /gradients -->)"
    return re.sub(pattern, written, page, flags=re.DOTALL)
