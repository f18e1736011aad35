"""Giving a trained model away: what `finegrained export` builds and runs.

Copies a run's exported model, writes its model card (what it is, what it learned from and by which rewards, how it
is opened), and pushes both to the Hub where that is asked for. Loads no model. A card is for strangers: files are
named by their last two parts and their digests, never by a place on this machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import atomic_directory, read_json
from finegrained_rlhf.core.hub import data_set_name, is_offline, model_name
from finegrained_rlhf.core.markers import InputFile, OutputDirectory
from finegrained_rlhf.report.runs.settings import moving_words
from finegrained_rlhf.runtime.directory.lock import LOCK_FILE
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


CARD = "README.md"
_EXPORTS = ("policy", "model")


class HubApi(Protocol):
    """What of `huggingface_hub.HfApi` is used."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Make a repository where there is none."""

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any:
        """Upload every file of a directory in one commit."""


class Export:
    """Copy a run's model with a model card into a directory of its own, and perhaps to the Hub.

    Args:
        run: directory of a training run.
        output_dir: where the copy goes; new or empty.
        push_to: `org/name` on the Hub; None pushes nothing.
        private: whether a repository that is made there is private; one that exists stays as it is.

    Raises:
        ConfigError: `push_to` is no name of a repository.
    """

    every_process = False

    def __init__(
        self, run: InputFile, output_dir: OutputDirectory, push_to: str | None = None, private: bool = True
    ) -> None:
        name = None if push_to is None else model_name(push_to)
        if push_to is not None and (name is None or name.revision is not None):
            raise ConfigError(f"push_to: expected org/name, got {push_to!r}")
        self.directory, self.output_dir, self.push_to, self.private = RunDirectory(run), output_dir, push_to, private

    def run(self) -> None:
        """Copy, write the card, push; say where.

        Raises:
            ConfigError: the directory is in use, there is no connection to push by, or the Hub refuses.
            DataError: there is no run, or one of its records is damaged.
            ModelError: the run has exported no model.
        """
        target = Path(self.output_dir)
        if target.exists() and (not target.is_dir() or any(file.name != LOCK_FILE for file in target.iterdir())):
            raise ConfigError(f"output_dir: {target} exists and is not empty; name another")
        if self.push_to is not None and is_offline():
            raise ConfigError(
                f"push_to: {self.push_to} cannot be reached: HF_HUB_OFFLINE is set; unset it, or leave out"
            )
        export = exported_name(self.directory)
        card = model_card(self.directory, export, self.push_to or target.name)
        with atomic_directory(target) as copy:
            shutil.copytree(self.directory.final(export), copy, dirs_exist_ok=True)
            (copy / CARD).write_text(card, encoding="utf-8")
        print(f"the {export} of {self.directory.path} with its card is in {target}")
        if self.push_to is not None:
            push(target, self.push_to, self.private)
            print(f"pushed to https://huggingface.co/{self.push_to}")


def exported_name(run: RunDirectory) -> str:
    """What a run calls the model that it has exported: `policy` or `model`.

    Raises:
        DataError: there is no run.
        ModelError: it has exported none.
    """
    run.read_config()
    exported = [name for name in _EXPORTS if (run.final(name) / "config.json").is_file()]
    if not exported:
        raise ModelError(f"{run.path}: this run has exported no model yet (expected {run.final('policy')}/config.json)")
    return exported[0]


def push(directory: Path, name: str, private: bool, api: HubApi | None = None) -> None:
    """Upload a directory as a model of the Hub.

    Args:
        directory: what `Export` has written.
        name: `org/name`; made where there is no such repository.
        private: whether it is private then.
        api: to upload by; None takes `huggingface_hub`'s, with the user's own token.

    Raises:
        ConfigError: the Hub refuses or cannot be reached; what was exported stays where it is.
    """
    import huggingface_hub

    hub: HubApi = huggingface_hub.HfApi() if api is None else api
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=str(directory), commit_message="Export from finegrained_rlhf")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"push_to: {name}: {reason}; {directory} holds what was to be pushed (hf auth login, then "
            f"hf upload {name} {directory})"
        ) from None
