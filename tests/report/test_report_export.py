"""An exported model: what its card says, that it opens, and how it is pushed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from chat_toy import save_chat_model
from huggingface_hub import constants
from script_runs import run_script

import finegrained_rlhf
from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.report.export import Export, push, shown_path
from finegrained_rlhf.text.chat import PromptConfig, record_prompt

CONFIG: dict[str, Any] = {
    "_target_": "finegrained_rlhf.training.ppo.TrainPPO",
    "output_dir": "x",
    "seed": 3,
    "data": "/secret/place/world/train.json",
    "validation_data": "org/data:test",
    "policy": {"_target_": "finegrained_rlhf.models.PolicyConfig", "path": "runs/sft", "revision": None},
    "reward": {
        "components": {
            "relevance": {"_target_": "reward_models.SegmentScorer", "path": "/secret/place/rm/relevance"},
            "style": {"_target_": "my_rewards.Style"},
        },
        "weights": {"relevance": 0.3, "style": 1.0},
        "schedule": {"relevance": {"steps": [], "weights": []}, "style": {"steps": [1, 9], "weights": [0.0, 1.0]}},
        "gates": {"style": {"by": "relevance", "at_least": 0.5, "of": "mean"}},
    },
}
RECORD = {
    "starts": [{"versions": {"finegrained-rlhf": "0.2", "torch": "2.13"}, "python": "3.11.7"}],
    "inputs": {"data": {"path": "/secret/place/world/train.json", "sha256": "abcd1234"}},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PPO run that began from an SFT run that began from a model of the Hub."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs/ppo"
    save_chat_model(path / "policy")
    (path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    write_json(path / "policy/export.json", {"step": 40, "score": 1.25})
    write_json(path / "provenance.json", RECORD)
    write_json(
        path / "metrics.json", {"step": 40, "data": "/secret/place/world/test.json", "examples": 7, "rouge": 0.5}
    )
    (tmp_path / "runs/sft").mkdir()
    sft = {"policy": {"path": "google-t5/t5-large", "revision": "v1"}, "data": "x"}
    (tmp_path / "runs/sft/config.yaml").write_text(yaml.safe_dump(sft))
    return path


def card_of(run: Path, target: Path, **keys: Any) -> str:
    Export(str(run), str(target), **keys).run()
    return (target / "README.md").read_text(encoding="utf-8")


def test_the_copy_opens_and_its_card_says_where_it_comes_from(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_prompt(run / "policy", PromptConfig("on", "be kind"))
    card = card_of(run, tmp_path / "out/mine")
    assert "the policy of" in capsys.readouterr().out
    ours, theirs = open_policy(tmp_path / "out/mine"), open_policy(run)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert ours.prompt == PromptConfig("on", "be kind")
    _, head, text = card.split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "google-t5/t5-large",
        "tags": ["finegrained-rlhf", "ppo"],
    }
    for line in (
        "# mine",
        "Trained by `PPO` of [finegrained-rlhf](https://pypi.org/project/finegrained-rlhf/), step 40, seed 3.",
        "- started from: `runs/sft`",
        "- which was trained from: `google-t5/t5-large@v1`",
        "- trained on: `world/train.json`, SHA-256 of the content begins `abcd1234`",
        "- selected by: `org/data:test`",
        "| relevance | SegmentScorer | `rm/relevance` | 0.3 |",
        "| style | Style |  | 1 (linear 0.0 at 1, 1.0 at 9; where the mean of relevance is at least 0.5) |",
        "Measured on `world/test.json`, 7 examples.",
        "| score of validation | 1.25 |",
        "| rouge | 0.5 |",
        'policy = finegrained_rlhf.load_policy("mine")',
        "from transformers import AutoTokenizer, GPT2LMHeadModel",
        "Trained on prompts with chat template `on`, and the system message `be kind`; `load_policy` knows.",
        "finegrained-rlhf 0.2, torch 2.13, Python 3.11.7",
    ):
        assert line in text.splitlines(), line
    assert "secret" not in card and str(tmp_path) not in card


def test_the_code_of_the_card_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = card_of(run, tmp_path / "mine")
    code = card.split("```python\n")[1].split("```")[0].replace("…", "the cat")
    exec(compile(code, "card", "exec"), {"finegrained_rlhf": finegrained_rlhf})


def test_a_run_without_records_has_a_card_too(tmp_path: Path) -> None:
    save_chat_model(tmp_path / "run/model")
    config = {"_target_": "reward_models.TrainRewardModel", "model": "org/encoder"}
    (tmp_path / "run/config.yaml").write_text(yaml.safe_dump(config))
    card = card_of(tmp_path / "run", tmp_path / "out")
    assert "base_model: org/encoder" in card and "Trained by `RewardModel`" in card and "- rewardmodel" in card
    assert "load_policy" not in card and "## Results" not in card and "## Versions" not in card


def test_places_of_this_machine_are_not_named(tmp_path: Path) -> None:
    assert shown_path("/home/me/secret/world/train.json") == "world/train.json"
    assert shown_path("org/name@v1") == "org/name@v1" and shown_path("org/name:train") == "org/name:train"
    assert shown_path("train.json") == "train.json"


class FakeApi:
    """Remembers what it is asked for, or refuses."""

    calls: list[tuple[str, dict[str, Any]]] = []
    refuses: Exception | None = None

    def create_repo(self, repo_id: str, **options: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.calls.append(("create", {"repo_id": repo_id, **options}))

    def upload_folder(self, **options: Any) -> None:
        files = sorted(path.name for path in Path(options["folder_path"]).iterdir())
        self.calls.append(("upload", {**options, "files": files}))


def test_it_is_pushed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "HfApi", FakeApi)
    FakeApi.calls.clear()
    card = card_of(run, tmp_path / "out", push_to="org/mine", private=False)
    assert card.splitlines().count("# mine") == 1 and 'load_policy("org/mine")' in card
    (create, made), (upload, sent) = FakeApi.calls
    assert (create, made) == ("create", {"repo_id": "org/mine", "private": False, "exist_ok": True})
    assert upload == "upload" and sent["repo_id"] == "org/mine" and sent["folder_path"] == str(tmp_path / "out")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(sent["files"])


def test_what_the_hub_refuses_is_one_line_and_the_export_stays(run: Path, tmp_path: Path) -> None:
    api = FakeApi()
    api.refuses = OSError("no token\nfound")
    card_of(run, tmp_path / "out")
    with pytest.raises(ConfigError, match="push_to: org/mine: no token found; .*hf upload org/mine") as caught:
        push(tmp_path / "out", "org/mine", True, api)
    assert "\n" not in str(caught.value) and (tmp_path / "out/README.md").is_file()


def test_what_is_refused_before_anything_is_made(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    for name in ("mine", "./mine", "a/b/c", "org/mine@v1"):
        with pytest.raises(ConfigError, match="push_to: expected org/name"):
            Export(str(run), str(target), name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="push_to: org/mine cannot be reached: HF_HUB_OFFLINE is set"):
        card_of(run, target, push_to="org/mine")
    with pytest.raises(DataError):
        card_of(tmp_path, target)
    (tmp_path / "young").mkdir()
    (tmp_path / "young/config.yaml").write_text("seed: 0")
    with pytest.raises(ModelError, match="has exported no model yet"):
        card_of(tmp_path / "young", target)
    assert not target.exists()
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(ConfigError, match="output_dir: .* exists and is not empty"):
        card_of(run, target)


@pytest.mark.scripts
def test_the_command(run: Path, tmp_path: Path) -> None:
    done = run_script("export", f"run={run}", "output_dir=out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/README.md").is_file() and "with its card is in out" in done.stdout
    wrong = run_script("export", f"run={run}", "output_dir=other", "push_to=mine", cwd=tmp_path)
    assert wrong.returncode == 2 and wrong.stderr.strip() == "error: push_to: expected org/name, got 'mine'"
