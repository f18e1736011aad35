"""Carrying out a stress test: reading, sampling, scoring, writing."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json, write_text
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.inference.config import sampling
from finegrained_rlhf.inference.generate import open_generator, sample_records
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.metrics.stress import STRESS, model_paths, stress_table, weights_digest
from finegrained_rlhf.report.stress.job import StressTest
from finegrained_rlhf.report.stress.page import stress_page
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.stress.changes import MakesChanges, run_changes
from finegrained_rlhf.rewards.stress.makers import BUILT_IN, VERSION
from finegrained_rlhf.rewards.stress.measure import (
    RatedTexts,
    change_table,
    leakage_table,
    roles_of,
    spreads,
    verdicts,
    worst_cases,
)
from finegrained_rlhf.rewards.stress.reading import StressItem, read_items, read_samples
from finegrained_rlhf.rewards.stress.search import price
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.processes import Processes


def stress_test(job: StressTest) -> dict[str, Any]:
    """Attack the reward of a job, write what came of it and print it."""
    processes = Processes(job.processes)
    if processes.count > 1:
        raise ConfigError("finegrained stress-test runs in one process")
    models = {name: path for name, path in model_paths(job.reward.components).items() if Path(path).is_dir()}
    beside = [Path(path) / STRESS for path in models.values()]
    places = [Path(job.output)] if job.output else list(dict.fromkeys(beside))
    if not places:
        raise ConfigError("output: no component has a model's directory, so name a JSON file for the report")
    roles = roles_of(job.reward.components, job.stress_test.roles)
    items = read_items(job.data)
    if job.records is not None and job.records < len(items):
        kept = random.Random(stable_hash(job.seed, "records")).sample(range(len(items)), job.records)
        items = [items[number] for number in sorted(kept)]
    samples = read_samples(job.samples, items) if job.samples else _sampled(job, items, processes)
    answers = [item.record.answers or tuple(samples.get(item.record.id, ())) for item in items]
    items = [replace(i, record=replace(i.record, answers=of)) for i, of in zip(items, answers, strict=True)]
    digests = {name: weights_digest(path) for name, path in models.items()}
    composer = RewardComposer(job.reward)
    composer.setup(processes.device)
    composer.check_prompts([item.prompt for item in items])
    rated = RatedTexts(composer, {item.record.id: item.prompt for item in items}, roles)
    with torch.no_grad(), processes.autocast():
        values = attack(job, items, samples, rated)
    values["models"] = digests
    page = stress_page(values)
    for place in places:
        write_json(place, values)
        write_text(place.with_suffix(".html"), page)
    if job.format == "json":
        print(json.dumps(values, ensure_ascii=False))
    else:
        print(f"{stress_table(values)}\nreport: {', '.join(map(str, places))}, each with its page (.html)")
    return values


def _sampled(job: StressTest, items: Sequence[StressItem], processes: Processes) -> dict[str, tuple[str, ...]]:
    """What the policy samples for each question; nothing without a policy."""
    if job.checkpoint is None:
        return {}
    generator = open_generator(job.checkpoint, processes)
    inputs = [item.input for item in items]
    prompts = prompts_for(generator.policy, inputs, job.max_prompt_tokens, job.prompt_too_long, job.prompt)
    answering = job.answering(sampling(job.decoding, job.stress_test.samples))
    return {record.id: record.outputs for record in sample_records(generator, prompts, processes, answering)}


def attack(
    job: StressTest, items: Sequence[StressItem], samples: Mapping[str, Sequence[str]], rated: RatedTexts
) -> dict[str, Any]:
    """The report of a stress test, as `stress.json` has it; what models were attacked is not in it.

    Args:
        job: what is changed, and how often.
        items: the questions.
        samples: of a policy, by question; empty: answers are compared with those that the file has.
        rated: the reward.
    """
    config, records = job.stress_test, [item.record for item in items]
    answers = {record.id: samples.get(record.id) or record.answers for record in records}
    several = any(len(set(texts)) > 1 for texts in answers.values())
    if not several:
        answers = {record.id: (record.gold, *answers[record.id]) for record in records}
    compared = "sampled answers" if samples else "the file's own answers" if several else "gold answers"
    makers: list[MakesChanges] = [*(BUILT_IN if config.built_in else ()), *config.families]
    changes = run_changes(records, makers, job.seed, config.answers)
    texts = [(name, text) for name, given in answers.items() for text in given]
    texts += [(change.record, text) for change in changes for text in (change.base, change.changed)]
    with ProgressBar("scoring", len(texts), "answers", job.format == "table") as bar:
        for start in range(0, len(texts), 1024):
            rated.add(texts[start : start + 1024])
            bar.update(len(texts[start : start + 1024]))
    spread = spreads(rated, answers)
    judged = verdicts(changes, rated, spread)
    asked, among = records[: config.searched] if config.edits else [], answers if several else {}
    with ProgressBar("searching", len(asked), "questions", job.format == "table") as bar:
        searched = price(asked, rated, among, config.edits, job.seed, records, bar.update)
    table = change_table(judged, job.seed)
    return {
        "changes": {name: table[name] for name in dict.fromkeys([*(m.name for m in makers), *table]) if name in table},
        "leakage": leakage_table(changes, rated, spread),
        "search": searched,
        "worst": worst_cases(judged, {record.id: record.question for record in records}, spread),
        "data": str(job.data),
        "seed": job.seed,
        "version": VERSION,
        "questions": len(records),
        "compared_with": compared,
        "roles": {component: role for role, component in rated.roles.items()},
        "spread": spread,
    }
