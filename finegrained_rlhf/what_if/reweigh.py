"""What `finegrained reweigh` runs, what it reads and the table it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.exports import public_path
from finegrained_rlhf.core.files import read_jsonl, write_json
from finegrained_rlhf.rewards.moving import RewardConstraint, RewardGate, WeightSchedule
from finegrained_rlhf.rewards.penalties import FormPenalties, OverlongPenalty
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.ppo.advantages import GAE, AdvantageEstimator, GroupAdvantages
from finegrained_rlhf.training.ppo.config import CompatConfig, KLConfig, PPOConfig
from finegrained_rlhf.what_if.job import Reweigh
from finegrained_rlhf.what_if.kept_rollouts import kept_steps, read_kept_step
from finegrained_rlhf.what_if.weights import (
    NewBest,
    StepChange,
    Weighing,
    check_recomputed,
    compare,
    component_config,
    experience_under,
)

NUMBERS = ("total_before", "total_now", "tau", "best_changes", "advantage_correlation", "advantage_flips")
"""What is averaged over steps, in the order of the table."""
_HEADINGS = ("total before", "total now", "Kendall τ_b", "best changes", "advantages r", "signs change")
_SHOWN = 200
"""Characters of a prompt that are printed; the file has all."""


def run_weighing(config: Mapping[str, Any], run: RunDirectory) -> Weighing:
    """The reward in a run's configuration; a penalty for form is a component whose weight is the penalty, negative.

    Raises:
        DataError: the run has none, or its penalties are those of another version.
        ConfigError: a penalty for form has a wrong value.
    """
    reward = config.get("reward")
    if not isinstance(reward, Mapping) or not reward.get("weights"):
        raise DataError("expected the weights of a reward; is this a PPO run?", file=run.config_path, field="reward")
    settings = reward.get("settings") or {}
    try:
        overlong = OverlongPenalty(**_without_target(reward.get("overlong") or {}))
    except (TypeError, AttributeError) as error:
        raise DataError(
            f"expected the limit of a response ({error})", file=run.config_path, field="reward.overlong"
        ) from None
    penalties = FormPenalties(reward.get("end_penalty") or 0.0, overlong)
    weights = {**reward["weights"], **penalties.weights}
    return Weighing(
        {name: float(weight) for name, weight in weights.items()},
        {name: component_config(name, settings.get(name) or {}) for name in weights},
        {name: gate for name, gate in _parts(reward, "gates", RewardGate, run).items() if gate.active},
        [
            name
            for place, kind in (("schedule", WeightSchedule), ("constraints", RewardConstraint))
            for name, part in _parts(reward, place, kind, run).items()
            if part.active
        ],
        reward.get("credit", "end"),
    )


def _parts(reward: Mapping[str, Any], place: str, kind: type, run: RunDirectory) -> dict[str, Any]:
    try:
        return {name: kind(**_without_target(part)) for name, part in (reward.get(place) or {}).items()}
    except (TypeError, AttributeError) as error:
        raise DataError(
            f"expected {kind.__name__} keys ({error})", file=run.config_path, field=f"reward.{place}"
        ) from None


def mean_weighing(weighings: Sequence[Weighing]) -> Weighing:
    """The reward of several steps of a run, each weight being the mean of theirs."""
    weights = {name: [weighing.weights[name] for weighing in weighings] for name in weighings[0].weights}
    return replace(
        weighings[0],
        weights={name: values[0] if len(set(values)) == 1 else fmean(values) for name, values in weights.items()},
    )


def ppo_config_of_run(config: Mapping[str, Any], run: RunDirectory) -> PPOConfig:
    """The PPO settings in a run's configuration.

    Raises:
        DataError: it has none, or they are those of another version.
        ConfigError: its KL penalty was not kept.
    """
    parts = {"kl": KLConfig, "compat": CompatConfig}
    try:
        settings = _without_target(config["ppo"])
        made = {name: parts[name](**_without_target(settings.pop(name))) for name in parts if name in settings}
        ppo = PPOConfig(**settings, **made)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"expected the settings of PPO ({error})", file=run.config_path, field="ppo") from None
    if (ppo.kl.place, ppo.kl.estimator) == ("reward", "exact"):
        raise ConfigError(
            f"{run.config_path}: ppo.kl.estimator=exact took a penalty from the rewards that samples do not keep: "
            "such a run cannot be weighed anew"
        )
    return ppo


def algorithm_of_run(config: Mapping[str, Any], run: RunDirectory) -> AdvantageEstimator:
    """The algorithm in a run's configuration; PPO's where it names none.

    Raises:
        DataError: it is another version's, or none of ours.
        ConfigError: it has a value head a component, whose values were not kept one by one.
    """
    settings = config.get("algorithm") or {"_target_": public_path(GAE)}
    kinds = {public_path(kind).rpartition(".")[2]: kind for kind in (GAE, GroupAdvantages)}
    try:
        algorithm = kinds[str(settings["_target_"]).rpartition(".")[2]](**_without_target(settings))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"expected an algorithm of ours ({error})", file=run.config_path, field="algorithm") from None
    if isinstance(algorithm, GAE) and algorithm.per_component:
        raise ConfigError("algorithm.per_component: the values of each head were not kept; advantages do not follow")
    return algorithm


def _without_target(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "_target_"}


def mean_of(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over steps of every number, over those steps that have it."""
    mean: dict[str, Any] = {}
    for key in NUMBERS:
        values = [step[key] for step in steps if step[key] is not None]
        mean[key] = fmean(values) if values else None
    for key in ("shares_before", "shares_now"):
        names = list(dict.fromkeys(name for step in steps for name in step[key]))
        mean[key] = {name: fmean(step[key][name] for step in steps if step[key]) for name in names}
    return mean


def reweigh(job: Reweigh) -> None:
    """Measure what changes, write it where an output is named, and print it."""
    report = job.measured()
    if job.output is not None:
        write_json(job.output, report)
    print(report_text(report, job.examples))


def measured(job: Reweigh) -> dict[str, Any]:
    """Weigh every kept step under the old and the new reward, and collect what changes."""
    run = RunDirectory(job.directory)
    config = run.read_config()
    before, ppo, algorithm = (
        run_weighing(config, run),
        ppo_config_of_run(config, run),
        algorithm_of_run(config, run),
    )
    before.changed(job.reward.weights, job.reward.settings)  # what is unknown is refused before rollouts are read
    metrics = {row.get("step"): row for row in read_jsonl(run.metrics)}
    changes: list[StepChange] = []
    examples: list[NewBest] = []
    weighings: list[Weighing] = []
    for step in _steps(job, run):
        row = metrics.get(step, {"step": step})
        kept = read_kept_step(run, step, list(before.weights), row, critic=algorithm.critic)
        if not (algorithm.critic or kept.complete):
            raise DataError(
                f"holds {len(kept.rollout.texts)} of {kept.episodes} responses; advantages over the responses to a "
                "prompt need all of them",
                file=run.samples_path(step),
            )
        trained = before.at(row, run.metrics)
        old = experience_under(kept, trained, ppo, algorithm)
        check_recomputed(kept, old, ppo)
        new = trained.changed(job.reward.weights, job.reward.settings)
        change, new_best = compare(kept, old, experience_under(kept, new, ppo, algorithm))
        weighings.append(trained)
        changes.append(change)
        examples += new_best
    return {
        "run": job.directory,
        "moved": len({tuple(weighing.weights.values()) for weighing in weighings}) > 1,
        "before": asdict(mean_weighing(weighings)),
        "now": asdict(mean_weighing(weighings).changed(job.reward.weights, job.reward.settings)),
        "steps": [asdict(change) for change in changes],
        "mean": mean_of([asdict(change) for change in changes]),
        "new_best": [asdict(example) for example in sorted(examples, key=lambda example: -example.gain)],
    }


def _steps(job: Reweigh, run: RunDirectory) -> list[int]:
    kept = kept_steps(run)
    if not kept:
        raise DataError("no rollouts were kept here; expected samples/step_N.jsonl", file=run.path)
    missing = sorted(set(job.steps or ()) - set(kept))
    if missing:
        raise ConfigError(f"steps: step {missing[0]} was not kept; kept are {', '.join(map(str, kept))}")
    return kept if job.steps is None else sorted(set(job.steps))


def report_text(report: Mapping[str, Any], examples: int) -> str:
    """The report for people: a table of the steps, one of the components, the prompts that change most."""
    before, now, mean, steps = report["before"], report["now"], report["mean"], report["steps"]
    rows = [{"step": step["step"], **_row(step)} for step in steps]
    rows += [{"step": "mean", **_row(mean)}] if len(steps) > 1 else []
    components = [
        {
            "component": name,
            "weight": weight,
            "now": now["weights"][name],
            "share of variance": mean["shares_before"].get(name),
            "share now": mean["shares_now"].get(name),
            "settings": _differences(before["settings"][name], now["settings"][name]) or None,
        }
        for name, weight in before["weights"].items()
    ]
    columns = [key for key in components[0] if key != "settings" or any(row[key] for row in components)]
    parts = [markdown_table(rows, ["step", *_HEADINGS]), markdown_table(components, columns)]
    if report["moved"]:
        parts.append("The run's weights moved from step to step: those of the table are means over the steps.\n")
    if before == now:
        parts.append("Nothing is changed: give reward.weights.NAME=NUMBER or reward.settings.NAME.aggregation=mean.\n")
    part = [str(step["step"]) for step in steps if not step["complete"]]
    if part:
        parts.append(
            f"Of step {', '.join(part)} not all responses were kept: rewards and advantages are whitened by the "
            "statistics of those that were, before and now.\n"
        )
    count = len(report["new_best"])
    if count and examples:
        parts.append(f"Prompts with a new best sample: {count}. Those that gain most:\n")
    return "\n".join([*parts, *(_example(example) for example in report["new_best"][:examples])])


def _row(step: Mapping[str, Any]) -> dict[str, Any]:
    return {heading: step[key] for key, heading in zip(NUMBERS, _HEADINGS, strict=True)}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {before[key]} → {now[key]}" for key in before if before[key] != now[key])


def _example(example: Mapping[str, Any]) -> str:
    prompt = example["prompt"] if len(example["prompt"]) <= _SHOWN else f"{example['prompt'][:_SHOWN]}…"
    lines = [f"step {example['step']}, {example['id']}: {prompt}"]
    for which in ("before", "now"):
        best = example[which]
        totals = f"total {best['total_before']:.3f}, now {best['total_now']:.3f}"
        lines.append(f"  best {which} (sample {best['sample']}, {totals}): {best['response']}")
    return "\n".join(lines) + "\n"
