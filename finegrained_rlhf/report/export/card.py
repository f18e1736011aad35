"""The model card of an exported model: what it is, what it learned from and by which rewards, and how it is opened.

Loads no model. A card is for strangers: files are named by their last two parts and their digests, never by a place on
this machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.hub.names import data_set_name, model_name
from finegrained_rlhf.report.runs.settings import moving_words
from finegrained_rlhf.runtime.directory.provenance import PACKAGE
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.run_records import read_provenance
from finegrained_rlhf.text.chat import recorded_prompt

_GENERATIONS = 8
_NOT_MEASURED = ("step", "examples")


def model_card(run: RunDirectory, export: str, name: str) -> str:
    """The text of `README.md`, with the metadata that the Hub reads at its head.

    Args:
        run: a training run that has exported a model.
        export: what it calls its model: `policy` or `model`.
        name: by which others open it: a Hub name or a directory.

    Raises:
        ModelError: the model has no readable configuration.
        DataError: a record of the run is damaged.
    """
    config, directory = run.read_config(), run.final(export)
    record = read_provenance(run)
    bases = list(_bases(config))
    sections = [
        _head(config, directory, bases),
        f"# {name.rsplit('/')[-1]}\n\n{_what(config, run, export)}",
        _origin(config, record, bases),
        _rewards(config),
        _results(run, export),
        _usage(directory, export, name),
        _versions(record),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _bases(config: Mapping[str, Any]) -> Iterator[str]:
    """The model that training began with, the one that this was trained from, and so on."""
    for _ in range(_GENERATIONS):
        start = config.get("policy") or {}
        path = start.get("path") if isinstance(start, Mapping) else None
        path = path or config.get("model")
        if not isinstance(path, str):
            return
        revision = start.get("revision") if isinstance(start, Mapping) else None
        yield f"{path}@{revision}" if revision and "@" not in path else path
        run = RunDirectory(path)
        if not run.config_path.is_file():
            return
        config = run.read_config()


def _on_hub(base: str) -> str | None:
    """The Hub name of a base; None where a directory is meant."""
    name = None if Path(base).exists() else model_name(base)
    return None if name is None else name.name


def shown_path(path: str) -> str:
    """A path as a stranger may see it: a Hub name as it is, of a place on this machine the last two parts."""
    if not Path(path).exists() and (model_name(path) or data_set_name(path)):
        return path
    return "/".join(Path(path).parts[-2:]).strip("/")


def _architecture(directory: Path) -> dict[str, Any]:
    config = read_json(directory / "config.json")
    if not isinstance(config, dict) or not config.get("architectures"):
        raise ModelError(f"{directory}/config.json: names no architecture")
    return config


def _head(config: Mapping[str, Any], directory: Path, bases: list[str]) -> str:
    metadata: dict[str, Any] = {"library_name": "transformers"}
    if directory.name == "policy" and not _architecture(directory).get("is_encoder_decoder"):
        metadata["pipeline_tag"] = "text-generation"
    if known := [base for base in map(_on_hub, bases) if base]:
        metadata["base_model"] = known[0]
    if isinstance(config.get("data"), str) and not Path(config["data"]).exists():
        if (data := data_set_name(config["data"])) is not None:
            metadata["datasets"] = [data.name]
    metadata["tags"] = [PACKAGE, _method(config).lower()]
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---"


def _method(config: Mapping[str, Any]) -> str:
    """The trainer's class without its first word: `PPO`, `SFT`, `RewardModel`."""
    return str(config.get("_target_", "")).rpartition(".")[2].removeprefix("Train") or "model"


def _what(config: Mapping[str, Any], run: RunDirectory, export: str) -> str:
    record = _export_record(run, export)
    step = f", step {record['step']}" if "step" in record else ""
    seed = f", seed {config['seed']}" if "seed" in config else ""
    lora = ", LoRA merged in" if (run.final(export) / "adapter").is_dir() else ""
    return f"Trained by `{_method(config)}` of [{PACKAGE}](https://pypi.org/project/{PACKAGE}/){step}{seed}{lora}."


def _export_record(run: RunDirectory, export: str) -> dict[str, Any]:
    path = run.final(export) / "export.json"
    record = read_json(path) if path.is_file() else {}
    return dict(record) if isinstance(record, dict) else {}


def _origin(config: Mapping[str, Any], record: Mapping[str, Any], bases: list[str]) -> str:
    inputs = record.get("inputs") or {}

    def line(what: str, path: str, key: str) -> str:
        known = inputs.get(key) or {}
        commit = f", commit `{known['commit']}`" if known.get("commit") else ""
        digest = f", SHA-256 of the content begins `{known['sha256']}`" if known.get("sha256") else ""
        return f"- {what}: `{shown_path(path)}`{commit}{digest}"

    lines = []
    for place, base in enumerate(bases):
        key = "model" if "model" in config else "policy.path"
        lines.append(line("started from" if place == 0 else "which was trained from", base, key if place == 0 else ""))
    for key, what in (("data", "trained on"), ("validation_data", "selected by")):
        if isinstance(config.get(key), str):
            lines.append(line(what, config[key], key))
    return "## Base model and data\n\n" + "\n".join(lines) if lines else ""


def _rewards(config: Mapping[str, Any]) -> str:
    reward = config.get("reward")
    if not isinstance(reward, Mapping) or not reward.get("components"):
        return ""
    rows = []
    for name, scorer in reward["components"].items():
        path = scorer.get("path") if isinstance(scorer, Mapping) else None
        kind = str(scorer.get("_target_", "")).rpartition(".")[2] if isinstance(scorer, Mapping) else ""
        weight = (reward.get("weights") or {}).get(name, 0)
        moved = moving_words(config, name)
        paid = f"{weight:g} ({moved})" if moved else f"{weight:g}"
        rows.append(f"| {name} | {kind} | {f'`{shown_path(path)}`' if path else ''} | {paid} |")
    return "\n".join(["## Rewards", "", "| component | scorer | model | weight |", "|---|---|---|---|", *rows])


def _results(run: RunDirectory, export: str) -> str:
    measured = read_json(run.results) if run.results.is_file() else {}
    rows = {"score of validation": _export_record(run, export).get("score")}
    rows |= {key: value for key, value in measured.items() if key not in _NOT_MEASURED}
    numbers = {k: v for k, v in rows.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if not numbers:
        return ""
    of = [f"`{shown_path(str(measured['data']))}`"] if measured.get("data") else []
    of += [f"{measured['examples']} examples"] if measured.get("examples") else []
    note = [f"Measured on {', '.join(of)}.", ""] if of else []
    table = [f"| {name} | {value:.4g} |" for name, value in numbers.items()]
    return "\n".join(["## Results", "", *note, "| metric | value |", "|---|---|", *table])


def _usage(directory: Path, export: str, name: str) -> str:
    kind = _architecture(directory)["architectures"][0]
    code = [
        f"from transformers import AutoTokenizer, {kind}",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = {kind}.from_pretrained("{name}")',
    ]
    if export == "policy":
        ours = ["import finegrained_rlhf", "", f'policy = finegrained_rlhf.load_policy("{name}")']
        code = [*ours, 'print(policy.generate(["…"]))', "", "# or with transformers alone:", *code]
    prompt = recorded_prompt(directory)
    note = ""
    if prompt.chat_template != "auto":
        system = f", and the system message `{prompt.system}`" if prompt.system else ""
        note = f"\n\nTrained on prompts with chat template `{prompt.chat_template}`{system}; `load_policy` knows."
    return "## How to open it\n\n```python\n" + "\n".join(code) + "\n```" + note


def _versions(record: Mapping[str, Any]) -> str:
    starts = record.get("starts") or []
    versions = starts[-1].get("versions", {}) if starts else {}
    if not versions:
        return ""
    listed = ", ".join(f"{package} {version}" for package, version in versions.items())
    python = f", Python {starts[-1]['python']}" if starts[-1].get("python") else ""
    return f"## Versions\n\n{listed}{python}"
