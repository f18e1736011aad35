"""Wrong command lines: each is refused in one line that says what is wrong, exit status 2, and nothing is made.

In process, through the same door as `finegrained COMMAND`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import quick_hydra, tree  # noqa: F401

from finegrained_rlhf.launch.app import run_command
from finegrained_rlhf.launch.commands import NAMES

ROOT = Path(__file__).parents[2]
Refused = Callable[..., str]
SMOKE = ("experiment=smoke",)
SFT = ("experiment=factworld/sft", "data=good.json", "validation_data=null", "policy.path=folder")
WORLD = ("output_dir=world",)
TASKS = ("outputs=outputs.jsonl", "annotators=[ann]", "output_dir=t")

FILES = {
    "good.json": "[]",
    "bom.json": "\ufeff[]",
    "lines.json": '{"a": 1}\n{"a": 2}\n',
    "deep.json": "[" * 100_000,
    "deep.jsonl": '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}\n",
    "short.json": '[{"a": ',
    "text.json": "not JSON",
    "empty.json": "",
    "prompts.jsonl": '{"id": "a", "text": "Who?"}\n',
    "outputs.jsonl": '{"id": "a", "question": "Who?", "passages": [], "outputs": ["He."]}\n',
    "silent.jsonl": '{"id": "a", "question": "Who?", "passages": [], "outputs": [" "]}\n',
    "broken_syntax.py": "def f(:\n",
    "broken_import.py": "import no_such_library_of_mine\n",
    "broken_name.py": "x = undefined_name\n",
    "broken_raise.py": "raise RuntimeError('the licence has run out')\n",
    "no_class.py": "x = 1\n",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files to be wrong about."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inside").write_text("not a run")
    (tmp_path / "latin.json").write_bytes(b'["\xe9"]')
    (tmp_path / "a_run").mkdir()
    (tmp_path / "a_run/metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "a_run/config.yaml").write_text("seed: 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def refused(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused, and returns the one line that it says."""

    def run(command: str, *arguments: str) -> str:
        before = tree(place)
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        with pytest.raises(SystemExit) as ended:
            run_command(command)
        said = capsys.readouterr()
        assert ended.value.code == 2, said.err
        lines = said.err.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), said.err
        assert said.out == ""
        assert tree(place) == before
        return lines[0].removeprefix("error: ")

    return run


TYPES = [
    # key and value, what is said
    ("seed=abc", "seed: expected a whole number, got 'abc'"),
    ("seed=-1", "seed: expected a whole number from 0 to 2^63 - 1, got -1"),
    ("seed=99999999999999999999", "seed: expected a whole number from 0 to 2^63 - 1"),
    ("seed=null", "seed: expected a whole number, got null"),
    ("seed=true", "seed: expected a whole number, got true"),
    ("total_steps=2.5", "total_steps: expected a whole number, got 2.5"),
    ("total_steps=[1]", "total_steps: expected a whole number, got [1]"),
    ("dry_run=maybe", "dry_run: expected true or false, got 'maybe'"),
    ("dry_run='true'", "dry_run: expected true or false, got 'true'"),
    ("optimizer.lr=nan", "optimizer.lr: expected a number, got nan (it must be finite)"),
    ("optimizer.lr=fast", "optimizer.lr: expected a number, got 'fast'"),
    ("optimizer.lr=[0.1]", "optimizer.lr: expected a number, got [0.1]"),
    ("optimizer.lr=true", "optimizer.lr: expected a number, got true"),
    ("optimizer.betas=[0.9]", "optimizer.betas: expected a list of 2 numbers, got [0.9]"),
    ("optimizer.betas=0.9", "optimizer.betas: expected a list of 2 numbers, got 0.9"),
    ("optimizer=3", "optimizer=3 does not exist; expected"),
    ("rollout=3", "rollout: expected the keys of a RolloutConfig, got 3"),
    ("rollout.logprobs=maybe", "rollout.logprobs: expected one of auto, decode, update, got 'maybe'"),
    ("rollout.samples_per_prompt='4'", "rollout.samples_per_prompt: expected a whole number, got '4'"),
    ("ppo.kl.limit=off", "ppo.kl.limit: expected a number or null, got"),
    ("ppo.kl.estimator=k4", "ppo.kl.estimator: expected one of k1, k2, k3, exact, got 'k4'"),
    ("algorithm.per_component=all", "algorithm.per_component: expected true or false, got 'all'"),
    ("ppo.compat.update_dropout=0", "ppo.compat.update_dropout: expected true or false, got 0"),
    ("reward.weights=high", "reward.weights: expected a mapping of names to numbers, got 'high'"),
    ("reward.weights.relevance=nan", "reward.weights.relevance: expected a number, got nan (it must be finite)"),
    ("reward.settings.relevance.density=word", "reward.settings.relevance.density: expected one of"),
    ("reward.components.relevance.batch_size=big", "reward.components.relevance.batch_size: expected a whole number"),
    ("validation_prompts=few", "validation_prompts: expected a whole number or null, got 'few'"),
    ("max_prompt_tokens=1e3", "max_prompt_tokens: expected a whole number, got 1000.0"),
    ("value.kind=own", "value.kind: expected one of separate, shared, none, got 'own'"),
    ("data=3", "data: expected text, got 3 (text that looks like a number is quoted"),
    ("data=[a,b]", "data: expected text, got ['a', 'b']"),
    ("resume=1", "resume: expected one of auto, never or text, got 1"),
    ("processes.threads=all", "processes.threads: expected a whole number or null, got 'all'"),
]


@pytest.mark.parametrize(("wrong", "said"), TYPES, ids=[wrong for wrong, _ in TYPES])
def test_a_value_of_another_type(refused: Refused, wrong: str, said: str) -> None:
    assert said in refused("train_ppo", *SMOKE, "output_dir=run", wrong)


KEYS = [
    (("+foo.bar=3",), "unknown key 'foo'"),
    (("foo=3",), "unknown key 'foo' (--help lists the keys)"),
    (("ppo.kl.bta=1",), "unknown key 'ppo.kl.bta'"),
    (("+ppo.kl.bta=1",), "ppo.kl: unknown key 'bta'; did you mean beta?"),
    (("+rollout.tempature=1",), "rollout: unknown key 'tempature'; did you mean temperature?"),
    (("+reward.components.mine.path=x",), "reward.components.mine: no _target_"),
    (
        ("reward=preference", "preset=short", "reward.components.preference.path=x"),
        "reward.components.relevance: no _t",
    ),
    (("~rollout.temperature", "~ppo.epochs", "~data"), "missing key 'data'"),
    (("policy=big",), "policy=big does not exist; expected one of adapter, fid, full, lora, tiny_llama"),
    (("experiment=nothing",), "experiment=nothing does not exist; expected one of detox/base"),
    (("experiment=factworld/no",), "experiment=factworld/no does not exist; expected one of detox/base"),
    (("experiment=factworld/fine_grained", "optimizer=3"), "optimizer=3 does not exist; expected one of"),
    (("experiment=factworld/fine_grained", "policy=null"), "policy=null does not exist; expected one of adapter, fid"),
    (("oracle=factworld",), "unknown key 'oracle'"),
    (
        ("experiment=factworld/sft",),
        "sft belongs to finegrained train-sft, not to finegrained train-ppo",
    ),
    (("pipeline=factworld/systems",), "pipeline=factworld/systems belongs to finegrained run-experiment"),
    (("experiment=factworld/customize",), "experiment=factworld/customize belongs to finegrained sweep"),
    (("rollout._target_=finegrained_rlhf.rollout.Nothing",), "finegrained_rlhf.rollout has no Nothing"),
    (("rollout._target_=finegrained_rlhf.nowhere.X",), "there is no module finegrained_rlhf.nowhere"),
]


@pytest.mark.parametrize(("wrong", "said"), KEYS, ids=[" ".join(wrong) for wrong, _ in KEYS])
def test_a_key_that_nothing_reads_or_that_is_missing(refused: Refused, wrong: tuple[str, ...], said: str) -> None:
    experiment = () if any(word.startswith("experiment=") for word in wrong) else SMOKE
    assert said in refused("train_ppo", *experiment, "output_dir=run", *wrong)


CHOSEN = dict.fromkeys(("run_coreset", "run_pahf", "run_prelude"), ("text_generator@llm=local",))
"""What must be chosen before a command has keys."""


@pytest.mark.parametrize("command", NAMES)
def test_a_key_that_the_command_does_not_have(refused: Refused, command: str) -> None:
    assert "no_such_key" in refused(command, *CHOSEN.get(command, ()), "no_such_key=1")


PATHS = [
    (("policy.path=nowhere",), "policy.path: nowhere: no such file or directory"),
    (("value.path=nowhere/t5",), "value.path: nowhere/t5: no such file or directory"),
    (("data=nowhere.json",), "data: nowhere.json: no such file or directory"),
    (("validation_data=nowhere.json",), "validation_data: nowhere.json: no such file or directory"),
    (("reward.components.relevance.path=nowhere",), "reward.components.relevance.path: nowhere: no such file"),
    (("resume=nowhere",), "resume: nowhere: no such file or directory"),
    (("policy=adapter", "policy.adapter=nowhere", "policy.path=folder"), "policy.adapter: nowhere: no such file"),
    (("output_dir=good.json",), "output_dir: good.json is a file; expected a directory"),
    (("output_dir=good.json/x",), "output_dir: good.json/x cannot be made"),
    (("output_dir=/proc/x",), "output_dir: /proc/x cannot be written"),
    (("output_dir=folder",), "output_dir: folder is not empty and holds no training run"),
    (("output_dir=" + "x" * 300,), "file name too long"),
    (("output_dir=''",), "output_dir: expected a path, got an empty text"),
]


@pytest.mark.parametrize(("wrong", "said"), PATHS, ids=[" ".join(wrong)[:60] for wrong, _ in PATHS])
def test_a_path_that_cannot_be_read_or_written(refused: Refused, wrong: tuple[str, ...], said: str) -> None:
    assert said in refused("train_ppo", *SMOKE, "output_dir=run", *wrong)


def test_a_value_model_that_is_not_read_is_not_looked_for(refused: Refused) -> None:
    """The first thing wrong is what comes after it."""
    given = ("algorithm=grpo", "value.path=nowhere", "reward.components.relevance.path=nowhere")
    said = refused("train_ppo", *SMOKE, "output_dir=run", *given)
    assert said.startswith("reward.components.relevance.path: nowhere")


VALUES = [
    ("optimizer.lr=-1", "lr"),
    ("rollout.temperature=-1", "temperature"),
    ("rollout.samples_per_prompt=0", "rollout.samples_per_prompt: expected at least 1, got 0"),
    ("rollout.max_new_tokens=0", "rollout.max_new_tokens: expected at least 1, got 0"),
    ("ppo.epochs=0", "ppo.epochs: expected at least 1, got 0"),
    ("ppo.clip=-0.1", "clip"),
    ("ppo.lambda_=2", "lambda_"),
    ("ppo.kl.beta=-1", "beta"),
    ("total_steps=0", "total_steps"),
    ("samples_every=0", "samples_every"),
    ("validation_prompts=0", "validation_prompts"),
    ("keep_checkpoints=-1", "keep_checkpoints"),
    ("processes.precision=fp8", "precision"),
    ("tracking.kind=paper", "tracking"),
    ("~reward.weights.relevance", "relevance"),
    ("+reward.weights.politeness=1", "reward.weights.politeness: no such component"),
    ("+reward.components.mine._target_=nowhere_at_all.X", "there is no module nowhere_at_all"),
    ("+reward.components.mine._target_=no_class.Missing", "no_class has no Missing"),
    ("+reward.components.mine._target_=broken_import.A", "No module named 'no_such_library_of_mine'"),
    ("+reward.components.mine._target_=broken_syntax.A", "broken_syntax.py, line 1: invalid syntax"),
    ("+reward.components.mine._target_=broken_name.A", "NameError: name 'undefined_name' is not defined"),
    ("+reward.components.mine._target_=broken_raise.A", "RuntimeError: the licence has run out"),
    ("+reward.components.mine._target_=politeness", "expected MODULE.CLASS"),
]


@pytest.mark.parametrize(("wrong", "said"), VALUES, ids=[wrong for wrong, _ in VALUES])
def test_a_value_that_the_job_refuses(refused: Refused, wrong: str, said: str) -> None:
    """These come after the imports: keys, types and paths are right."""
    line = refused("train_ppo", *SMOKE, "output_dir=run", wrong)
    assert said in line
    if "mine" in wrong:
        assert line.startswith("reward.components.mine: _target_ ")


OTHERS = [
    ("train_ppo", (), "give a value for "),
    ("train_sft", ("output_dir=run",), "give a value for "),
    ("train_sft", (*SFT, "samples_every=3"), "unknown key 'samples_every'"),
    ("train_sft", (*SFT, "epochs=ten"), "epochs: expected a number, got 'ten'"),
    ("train_sft", (*SFT, "patience=soon"), "patience: expected a whole number or null, got 'soon'"),
    ("train_sft", ("experiment=smoke",), "experiment=smoke belongs to finegrained train-ppo"),
    ("train_reward_model", ("output_dir=run",), "reward_model=…"),
    (
        "train_dialki",
        ("experiment=dialki/wow", "data=good.json", "model=folder", "validation_data=null", "format=docx"),
        "format: expected one of",
    ),
    ("train_conqrr", ("experiment=conqrr/qrecc_t5qr", "data.format=docx"), "give a value for "),
    ("make_factworld", (*WORLD, "train=some"), "train: expected a whole number, got 'some'"),
    ("make_factworld", (*WORLD, "seed=-2"), "seed: expected a whole number from 0"),
    ("make_factworld", ("output_dir=good.json",), "output_dir: good.json is a file"),
    ("make_tiny_models", ("data=nowhere", "output_dir=m"), "data: nowhere: no such file or directory"),
    ("make_tiny_models", ("data=[good.json,gone.txt]", "output_dir=m"), "data: gone.txt: no such file or directory"),
    ("report", ("run=nowhere",), "run: nowhere: no such file or directory"),
    ("report", ("run=a_run", "policy=lora"), "unknown key 'policy' (--help lists the keys)"),
    ("report", ("run=a_run", "output=folder"), "output: folder is a directory; expected a file"),
    ("report", ("run=a_run", "output=good.json/x.html"), "output: good.json/x.html cannot be made"),
    ("reweigh", ("run=nowhere",), "run: nowhere: no such file or directory"),
    ("generate", ("checkpoint=folder", "input=prompts.jsonl", "output=prompts.jsonl"), "is also input"),
    ("generate", ("checkpoint=folder", "input=prompts.jsonl", "output=/proc/nope/x"), "output: /proc/nope/x cannot"),
    ("generate", ("checkpoint=folder", "input=gone.jsonl", "output=-"), "input: gone.jsonl: no such file"),
    ("generate", ("checkpoint=gone", "input=-", "output=-"), "checkpoint: gone: no such file or directory"),
    ("generate", ("checkpoint=folder", "input=-", "output=-", "decoding.n=two"), "decoding.n: expected a whole number"),
    ("generate", ("checkpoint=folder", "input=-", "output=-", "experiment=smoke"), "belongs to finegrained train-ppo"),
    ("generate", ("checkpoint=gone", "input=-", "output=a_run/metrics.jsonl"), "is a file of the run in"),
    ("generate", ("checkpoint=folder", "input=-", "output=folder/inside"), "is there, in a directory that is read"),
    ("generate", ("checkpoint=folder", "input=-", "output=-", "batch_size=0"), "batch_size: expected at least 1"),
    ("evaluate", ("checkpoint=gone", "data=good.json", "output=o.json"), "checkpoint: gone: no such file"),
    ("evaluate", ("checkpoint=folder", "data=good.json", "output=good.json"), "output: good.json is also data"),
    ("sample_outputs", ("checkpoint=folder", "data=gone", "output=o"), "data: gone: no such file or directory"),
    ("build_index", ("corpus=gone", "output_dir=i"), "corpus: gone: no such file or directory"),
    ("inspect_prompts", ("data=good.json",), "file good.json, "),
    ("inspect_prompts", ("data=gone.jsonl",), "data: gone.jsonl: no such file or directory"),
    ("inspect_prompts", ("data=deep.jsonl",), "file deep.jsonl, record 0: expected a JSON object a line"),
    ("inspect_prompts", ("data=bom.json",), "file bom.json: begins with a byte order mark (BOM)"),
    ("inspect_prompts", ("data=empty.json",), "no record, expected one a line"),
    ("inspect_prompts", ("data=prompts.jsonl", "format=csv"), "format: expected one of table, json, got 'csv'"),
    ("inspect_feedback", ("data=bom.json",), "file bom.json: begins with a byte order mark (BOM)"),
    ("inspect_feedback", ("data=lines.json",), "it looks like JSON Lines; expected one JSON document"),
    ("inspect_feedback", ("data=deep.json",), "brackets are nested too deep"),
    ("inspect_feedback", ("data=short.json",), "is the file truncated?"),
    ("inspect_feedback", ("data=text.json",), "not valid JSON"),
    ("inspect_feedback", ("data=empty.json",), "not valid JSON"),
    ("inspect_feedback", ("data=latin.json",), "not UTF-8 text"),
    ("inspect_feedback", ("data=folder",), "file folder: is a directory, expected a file"),
    ("inspect_feedback", ("data=gone.json",), "data: gone.json: no such file or directory"),
    ("inspect_feedback", ("data=good.json", "format=csv"), "format: expected one of table, json, got 'csv'"),
    ("run_experiment", (), "name an experiment of several steps: pipeline=NAME"),
    ("run_experiment", ("experiment=smoke",), "finegrained run-experiment takes pipeline=NAME"),
    ("run_experiment", ("pipeline=factworld/demo", "output_dir=x", "seed=-3"), "seed: expected a whole number"),
    ("run_experiment", ("pipeline=factworld/demo", "output_dir=x", "seeds=[1,a]"), "seeds: expected a whole number"),
    ("run_experiment", ("pipeline=factworld/demo", "output_dir=/proc/x"), "output_dir: /proc/x cannot be written"),
    (
        "run_experiment",
        ("pipeline=factworld/demo", "output_dir=x", "settings.ppo_steps=2.5"),
        "step preference_rlhf: total_steps: expected a whole number, got 2.5",
    ),
    ("make_annotation_tasks", (*TASKS, "outputs=gone.jsonl"), "outputs: gone.jsonl: no such file or directory"),
    ("make_annotation_tasks", (*TASKS, "outputs=lines.json"), "file lines.json, record 0, field "),
    ("make_annotation_tasks", (*TASKS, "outputs=silent.jsonl"), "every record has an empty output"),
    ("make_annotation_tasks", (*TASKS, "annotators=[ann,ann]"), "annotators: expected one name or more, each once"),
    ("make_annotation_tasks", (*TASKS, "overlap=2"), "overlap: expected at least 0 and at most 1, got 2"),
    ("make_annotation_tasks", (*TASKS, "random_share=0.1"), "random_share: expected 0.3 to 1, got 0.1"),
    ("make_annotation_tasks", (*TASKS, "count=0"), "count: expected at least 1, got 0"),
    ("make_annotation_tasks", (*TASKS, "tool=paper"), "tool: expected one of page, label_studio, potato, got 'paper'"),
    ("make_annotation_tasks", (*TASKS, "taxonomy=gone"), "taxonomy=gone does not exist; expected one of"),
    ("make_annotation_tasks", (*TASKS, "select=best"), "select=best does not exist; expected one of disagree, diverse"),
    ("make_annotation_tasks", (*TASKS, "select=uncertain"), "give a value for select.models"),
    ("make_annotation_tasks", (*TASKS, "select=uncertain", "select.models=[gone]"), "select.models: gone: no such"),
    ("make_annotation_tasks", (*TASKS, "select=uncertain", "select.models=[]"), "models: expected one reward model"),
    ("make_annotation_tasks", (*TASKS, "preannotate=models", "preannotate.models=[gone]"), "preannotate.models: gone"),
    ("make_annotation_tasks", (*TASKS, "preannotate=3"), "preannotate=3 does not exist; expected one of judge, models"),
    ("make_annotation_tasks", (*TASKS, "qualification=gone.json"), "qualification: gone.json: no such file"),
    ("read_annotations", ("exports=[gone.json]", "tasks=folder", "output=a.jsonl"), "exports: gone.json: no such file"),
    ("read_annotations", ("exports=[good.json]", "tasks=folder", "output=a.jsonl"), "file folder/manifest.json"),
    ("read_annotations", ("exports=[]", "tasks=folder", "output=a.jsonl"), "exports: "),
    (
        "measure_agreement",
        ("annotations=gone.jsonl", "tasks=folder", "output=o.json"),
        "annotations: gone.jsonl: no such",
    ),
    ("measure_agreement", ("annotations=lines.json", "tasks=folder", "output=o.json"), "file folder/manifest.json"),
    ("adjudicate", ("annotations=lines.json", "tasks=folder", "output=o.json", "how=dice"), "how: expected one of"),
    ("adjudicate", ("annotations=lines.json", "tasks=gone", "output=o.json"), "tasks: gone: no such file or directory"),
    ("sweep", (*SMOKE, "output_dir=s", "optimizer.lr=-1", "seed=0,1"), "lr"),
    ("sweep", (*SMOKE, "output_dir=s", "seed=a,b"), "seed: expected a whole number, got 'a'"),
    ("sweep", (*SMOKE, "output_dir=s", "seed=0,1", "sweep.parallel=two"), "sweep.parallel: expected a whole number"),
    ("sweep", (*SMOKE, "output_dir=a_run", "seed=0,1"), "output_dir: a_run is the directory of a training run"),
    ("sweep", (*SMOKE, "output_dir=good.json", "seed=0,1"), "output_dir: good.json is a file"),
    (
        "run_experiment",
        ("pipeline=dialki/no",),
        "pipeline=dialki/no does not exist; expected one of ",
    ),
    (
        "train_dialki",
        ("experiment=dialki/wow", "baseline=null"),
        "baseline=null does not exist; expected one of bertqa",
    ),
    ("doctor", (*SMOKE, "doctor.prompts=0"), "doctor.prompts"),
    ("doctor", (*SMOKE, "doctor.prompts=two"), "doctor.prompts: expected a whole number or null, got 'two'"),
    ("doctor", ("experiment=dialki/wow",), "experiment=dialki/wow belongs to finegrained train-dialki"),
]


@pytest.mark.parametrize(
    ("command", "wrong", "said"), OTHERS, ids=[f"{command} {' '.join(wrong)}"[:90] for command, wrong, _ in OTHERS]
)
def test_other_commands(refused: Refused, command: str, wrong: tuple[str, ...], said: str) -> None:
    assert said in refused(command, *wrong)


def test_there_are_at_least_a_hundred() -> None:
    assert len({*map(str, (*TYPES, *KEYS, *PATHS, *VALUES, *OTHERS))}) >= 100


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("seed=abc", "seed: expected a whole number, got 'abc'"),
        ("total_steps=2.5", "total_steps: expected a whole number, got 2.5"),
        ("+reward.components.mine._target_=broken_import.A", "No module named 'no_such_library_of_mine'"),
    ],
)
def test_the_doctor_reports_what_a_run_would_refuse(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: str, said: str
) -> None:
    """It goes on to other findings and ends with 1: it ran, and found something."""
    before = tree(place)
    monkeypatch.setattr(
        sys, "argv", ["doctor", *SMOKE, "prepare=null", "output_dir=run", "doctor.two_processes=false", wrong]
    )
    with pytest.raises(SystemExit) as ended:
        run_command("doctor")
    assert ended.value.code == 1 and said in capsys.readouterr().out
    assert tree(place) == before


def test_a_name_that_the_user_wrote_is_found_in_the_working_directory(refused: Refused, place: Path) -> None:
    """A custom class's keys are checked too, from its source."""
    (place / "my_own.py").write_text("class Polite:\n    def __init__(self, penalty: float = -1.0) -> None: ...\n")
    mine = "+reward.components.mine._target_=my_own.Polite"
    assert "mine: unknown key 'penaltie'; did you mean penalty?" in refused(
        "train_ppo", *SMOKE, "output_dir=run", mine, "+reward.components.mine.penaltie=1"
    )
    assert "mine.penalty: expected a number, got 'high'" in refused(
        "train_ppo", *SMOKE, "output_dir=run", mine, "+reward.components.mine.penalty=high"
    )


def test_what_the_file_system_refuses_is_one_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from finegrained_rlhf.launch.mistakes import user_errors

    for error, said in [
        (PermissionError(13, "Permission denied", "/a/b"), "error: /a/b: permission denied"),
        (NotADirectoryError(20, "Not a directory", "/a/b"), "error: /a/b: not a directory"),
        (OSError(28, "No space left on device", "/a/b"), "error: /a/b: the disk is full"),
        (OSError(28, "No space left"), f"error: the disk is full: that of the working directory, {place}, or of temp"),
    ]:
        with pytest.raises(SystemExit) as ended, user_errors("evaluate"):
            raise error
        assert ended.value.code == 2 and capsys.readouterr().err.startswith(said)
    with pytest.raises(SystemExit) as ended, user_errors("evaluate"):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    with pytest.raises(ZeroDivisionError), user_errors("evaluate"):  # a fault of ours keeps its traceback
        raise ZeroDivisionError


def test_json_of_the_project_is_still_read(place: Path) -> None:
    from finegrained_rlhf.core.files import read_json

    (place / "x.json").write_text(json.dumps({"a": [1, "é"]}), encoding="utf-8")
    assert read_json(place / "x.json") == {"a": [1, "é"]}
