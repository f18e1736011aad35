"""Giving a trained model away: what `finegrained export` builds and runs.

Copies a run's exported model, writes its model card, and pushes both to the Hub where that is asked for. Loads no
model.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.hub.names import model_name
from finegrained_rlhf.core.hub.snapshots import is_offline
from finegrained_rlhf.core.markers import InputFile, OutputDirectory
from finegrained_rlhf.report.export.card import model_card
from finegrained_rlhf.runtime.directory.lock import LOCK_FILE
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

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
