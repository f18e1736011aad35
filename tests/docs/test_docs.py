"""The documentation: links lead somewhere, documented commands compose and bind, and the examples run."""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from hydra import initialize_config_dir
from hydra_once import compose
from kinds import some_of_each_kind
from omegaconf import OmegaConf
from script_runs import run_script
from slurm_toy import make_slurm
from torch.distributed.run import get_args_parser

from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.launch.commands import all_commands, as_keys, names
from finegrained_rlhf.launch.configurations import conf_directories
from finegrained_rlhf.runtime.job import RESERVED_KEYS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("finegrained_lab")  # pages speak of the laboratory too
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ELISION = {"...", "…", "KEY=VALUE"}
_OPEN = {"evaluate", "generate", "reweigh"}  # commands that take `reward.…=` of a reward that a run's config.yaml names


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in _FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


# Links ----------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def written_by_an_experiment(target: Path) -> bool:
    """Result pages are generated: an experiment names the JSON file beside them."""
    results = f"${{results_dir}}/{target.parent.name}/{target.stem}.json"
    pipelines = (path for directory in conf_directories() for path in (directory / "pipeline").rglob("*.yaml"))
    return any(results in path.read_text(encoding="utf-8") for path in pipelines)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            assert target.parent.parent == ROOT / "docs/results" and written_by_an_experiment(target), (
                f"{link}: no such file"
            )
        elif anchor:
            assert anchor in anchors(target), f"{link}: the page has {sorted(anchors(target))}"


def test_every_page_is_linked_from_the_readme() -> None:
    text = prose(ROOT / "README.md")
    missing = [name_of(page) for page in PAGES if page.name != "README.md" and f"({name_of(page)})" not in text]
    assert not [name for name in missing if not name.startswith("docs/results/")]


# Commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """One documented call of a command.

    Attributes:
        where: the file that documents it.
        name: of the command, with underscores.
        arguments: what follows the name.
        complete: it can be typed as it stands.
        started: what is run to start it, a file or a module with the name.
        launcher: what stands before that.
    """

    where: Path
    name: str
    arguments: tuple[str, ...]
    complete: bool
    started: tuple[str, ...]
    launcher: tuple[str, ...]

    def __str__(self) -> str:
        return f"{name_of(self.where)}: {self.name} {' '.join(self.arguments)}"


def old_paths() -> dict[str, str]:
    """The changelog's table: what was typed before and is no more, and the command in its place."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(scripts/\w+\.py)` \| `finegrained ([a-z-]+)` \|$", text, re.MULTILINE))


OLD = old_paths()


def _lines(text: str) -> list[str]:
    return [line.strip() for line in re.sub(r"\\\n\s*", " ", text).split("\n") if line.strip()]


def _calls(line: str, where: Path, complete: bool) -> Iterator[Command]:
    words = shlex.split(line, comments=True)
    for start, word in enumerate(words):
        behind = start + 1
        if file := re.fullmatch(r"scripts/([a-z]\w*)\.py", word):
            name = OLD.get(word, file.group(1))
            assert word in OLD or (ROOT / word).is_file(), f"{name_of(where)}: there is no {word}"
        elif word in ("finegrained", "finegrained_rlhf") and words[behind:] and words[behind][0].islower():
            name, behind = words[behind], behind + 1
        else:
            continue
        rest = itertools.takewhile(lambda w: w not in {"|", ";", "&&", "<", ">"}, words[behind:])
        started, launcher = tuple(words[start:behind]), tuple(words[:start])
        yield Command(where, name.replace("-", "_"), tuple(rest), complete, started, launcher)


def shell_commands(text: str, where: Path, variables: dict[str, str]) -> Iterator[Command]:
    """The calls in a shell block; `for` loops are unrolled and variables (of earlier blocks too) replaced."""
    loops: list[tuple[str, list[str]]] = []
    for line in _lines(text):
        if loop := re.fullmatch(r"for (\w+) in (.*); do", line):
            loops.append((loop.group(1), loop.group(2).split()))
        elif line == "done":
            loops.pop()
        elif assignment := re.fullmatch(r"(\w+)=(\"[^\"]*\"|\S*)", line):
            variables[assignment.group(1)] = assignment.group(2).strip('"')
        else:
            for values in itertools.product(*(choices for _, choices in loops)):
                known = variables | dict(zip((name for name, _ in loops), values, strict=True))
                filled = re.sub(r"\$(\w+)", lambda m, known=known: known.get(m.group(1), m.group(0)), line)
                yield from _calls(filled, where, complete=True)


def documented() -> list[Command]:
    commands: list[Command] = []
    for page in PAGES:
        variables: dict[str, str] = {}
        for block in blocks(page, "bash"):
            commands += shell_commands(block, page, variables)
        for code in re.findall(r"`([^`\n]*(?:scripts/\w+\.py|finegrained(?:_rlhf)? [a-z])[^`\n]*)`", prose(page)):
            commands += _calls(code, page, complete=False)
    for path in [*(ROOT / "scripts").glob("*.py"), *(p for place in conf_directories() for p in place.glob("*.yaml"))]:
        for line in path.read_text(encoding="utf-8").split("\n"):
            if re.match(r"(Example: | {6})(\w+=\S+ )*(python|accelerate|finegrained) ", line):
                commands += _calls(line.strip(), path, complete=False)
    return commands


COMMANDS = documented()


@pytest.fixture(scope="module")
def user_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages tell a user to write."""
    directory = tmp_path_factory.mktemp("user")
    for page in PAGES:
        for body in blocks(page, "yaml"):
            if found := re.match(r"(?:# @package _global_\n)?# (my_\S+\.yaml)\n", body):
                path = directory / found.group(1)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body, encoding="utf-8")
    for file, holds in (("my_rewards.py", "GroundedNumbers"), ("my_scorers.py", "WordList")):
        code = next(body for page in PAGES for body in blocks(page, "python") if f"class {holds}" in body)
        (directory / file).write_text(code, encoding="utf-8")
    return directory


def overrides(command: Command, user_files: Path) -> list[str]:
    """The command's overrides as the compose API takes them."""
    from finegrained_rlhf.launch.rewards import opened

    words = list(opened(command.arguments) if command.name in _OPEN else command.arguments)
    given, found = iter(as_keys(command.name, words)), []
    several = command.name == "sweep" or bool({"--multirun", "-m"} & set(command.arguments))
    for word in given:
        if word == "--config-dir":
            found.append(f"hydra.searchpath=[file://{user_files / next(given)}]")
        elif word == "--cfg":
            next(given)
        elif not word.startswith("-") and word not in _ELISION:
            first = r"=([^,\[]*),.*" if several else r"=(\w+)\|[\w|]*$"  # of several, or of what may stand there
            found.append(re.sub(first, r"=\1", word).replace("=…", "=1"))
    return found


def test_the_algorithms_page_quotes_its_table() -> None:
    table = read_json(ROOT / "docs/results/factworld/presets.json")
    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    errors = {(row["system"], row["seed"]): row["mean_error"] for row in table["rows"]}
    of = table["summary"]

    def row(name: str, dense: str, holistic: str) -> str:
        cells = [f"{of[s]['mean_error']['mean']:.3f} ± {of[s]['mean_error']['std']:.3f}" for s in (dense, holistic)]
        lower = sum(errors[dense, seed] < errors[holistic, seed] for seed in table["seeds"])
        time = of[dense]["processor_s"]["mean"] / of["ppo"]["processor_s"]["mean"]
        return f"| {name} | {' | '.join(cells)} | {lower} of 5 | {'1' if dense == 'ppo' else f'{time:.2f}'} |"

    credits = {"GDPO": " (`credit=process`)", "GRPO": " (`credit=process`)", "RLOO": " (`credit=returns`)"}
    assert row("PPO", "ppo", "ppo_holistic") in text
    for name in ("GDPO", "CISPO", "GSPO", "GRPO", "RLOO", "Dr. GRPO"):
        system = name.lower().replace(". ", "_")
        assert row(name + credits.get(name, ""), f"{system}_dense", f"{system}_holistic") in text
    assert f"SFT has {of['sft']['mean_error']['mean']:.3f}" in text
    at_the_end = sum(row["best_step"] == 20 for row in table["rows"])
    assert f"In {at_the_end} of the {len(table['rows']) - 5} runs" in " ".join(text.split())


def test_every_file_that_went_from_scripts_has_its_command_in_the_changelog() -> None:
    assert len(OLD) == 67
    for path, name in OLD.items():
        assert not (ROOT / path).exists() and Path(path).stem == name.replace("-", "_") and Path(path).stem in names()


def test_the_page_of_commands_says_what_help_says() -> None:
    """The same tasks, commands and words, in the same order."""
    page = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    shown = [
        (task, re.findall(r"^\| \[`([a-z-]+)`\]\([^)]+\) \| (.*) \|$", body, re.MULTILINE))
        for task, body in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page, re.MULTILINE)
    ]
    assert shown == [
        (task, [(name.replace("_", "-"), what) for name, what in group.items()])
        for task, group in all_commands().items()
    ]


def test_commands_are_found() -> None:
    assert {command.name for command in COMMANDS} == set(names())
    assert sum(command.complete for command in COMMANDS) > 40


@cache
@cache
def of_each_kind() -> list[Command]:
    """Some of the commands, whole ones where there are such."""
    whole_first = sorted(COMMANDS, key=lambda command: not command.complete)
    return some_of_each_kind(whole_first, lambda command: (command.name, command.arguments))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["kinds", "all"])
@pytest.mark.parametrize("name", names())
def test_documented_commands_compose(name: str, every: bool, user_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = COMMANDS if every else of_each_kind()
    monkeypatch.setattr(sys, "path", [*sys.path, str(user_files)])
    monkeypatch.setenv("PERSPECTIVE_API_KEY", "a key")
    from finegrained_rlhf.launch.steps import build, resolved

    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        for command in (command for command in commands if command.name == name and command.arguments):
            try:
                config = compose(name, overrides=overrides(command, user_files))
                if not command.complete or "--help" in command.arguments or _ELISION & set(command.arguments):
                    continue
                assert not OmegaConf.missing_keys(config), f"missing {sorted(OmegaConf.missing_keys(config))}"
                if name != "run_experiment":
                    beside = (*RESERVED_KEYS, "sweep", "doctor")
                    build({k: v for k, v in resolved(config).items() if k not in beside})
            except Exception as error:
                raise AssertionError(f"{command}\n{error}") from error


def launched(command: Command) -> argparse.Namespace | None:
    """What accelerate or torchrun makes of a command's options; None where neither starts it."""
    words = list(command.launcher)
    for name, parser in (("launch", launch_command_parser), ("torchrun", get_args_parser)):
        if name in words:
            options = words[words.index(name) + 1 :]
            return parser().parse_args([*options, *command.started, *command.arguments])
    return None


def test_documented_launchers_take_their_options() -> None:
    parsed = [launched(command) for command in COMMANDS]
    assert len([one for one in parsed if one is not None]) > 20
    assert not [str(c) for c, one in zip(COMMANDS, parsed, strict=True) if one is None and "accelerate" in c.launcher]


def test_several_nodes_are_started_alike() -> None:
    """The same run on every node: two nodes of eight processes that meet at one place."""
    page = ROOT / "docs/multi_node.md"
    commands = [c for c in COMMANDS if c.where == page and c.name == "train_ppo" and "smoke_nodes" in str(c)]
    by_torchrun, *by_accelerate = [launched(command) for command in commands]
    assert len({command.arguments for command in commands}) == 1
    assert (by_torchrun.nnodes, by_torchrun.nproc_per_node, by_torchrun.rdzv_endpoint) == ("2", "8", "node0:29500")
    assert [one.machine_rank for one in by_accelerate] == [0, 1]
    for one in by_accelerate:
        assert (one.num_machines, one.num_processes, one.multi_gpu) == (2, 16, True)
        assert f"{one.main_process_ip}:{one.main_process_port}" == by_torchrun.rdzv_endpoint


def test_the_batch_script_starts_what_it_asks_slurm_for(tmp_path: Path) -> None:
    (script,) = (body for body in blocks(ROOT / "docs/multi_node.md", "bash") if body.startswith("#!/bin/bash"))
    commands = make_slurm(tmp_path / "cluster")
    (commands / "torchrun").write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" - >> {tmp_path}/started\n', encoding="utf-8")
    (commands / "torchrun").chmod(0o755)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").touch()
    (tmp_path / "train_ppo.sbatch").write_text(script, encoding="utf-8")
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script, re.MULTILINE))
    slurm = {"SLURM_NNODES": asked["nodes"], "SLURM_CPUS_PER_TASK": asked["cpus-per-task"], "SLURM_JOB_ID": "7"}
    environment = {**os.environ, **slurm, "SLURM_JOB_NODELIST": "node[0-1]", "PATH": f"{commands}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "train_ppo.sbatch"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    *started, end = (tmp_path / "started").read_text(encoding="utf-8").split("-\n")
    assert len(started) == 2 == int(asked["nodes"]) and started[0] == started[1] and not end
    words = started[0].splitlines()
    one = get_args_parser().parse_args(words)
    assert (one.nnodes, one.nproc_per_node) == (asked["nodes"], asked["gpus-per-node"]) and asked[
        "ntasks-per-node"
    ] == "1"
    assert (one.rdzv_backend, one.rdzv_endpoint, one.rdzv_id) == ("c10d", "node0:29500", "7")
    composed = [
        c.arguments for c in COMMANDS if c.where.name == "multi_node.md" and "fine_grained" in str(c) and c.complete
    ]
    assert one.training_script == "scripts/train_ppo.py" and tuple(one.training_script_args) in composed


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    used = set(re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE))
    assert used and all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in used), used


# Examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_examples_parse(page: Path) -> None:
    for body in blocks(page, "python"):
        ast.parse(body)


def test_the_custom_rewards_of_the_page(user_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from finegrained_rlhf.core.records import Prompt
    from finegrained_rlhf.dialogue.records import Passage

    monkeypatch.syspath_prepend(str(user_files))
    import my_rewards

    prompts = [
        Prompt("a", "…", (), {"passages": (Passage("", "Lake", ("It is 3 km wide.", "It froze in 1963.")),)})
    ] * 2
    responses = ["It is 3 km wide. It froze in 1936.", ""]
    numbers = my_rewards.GroundedNumbers(penalty=-2.0).score(prompts, responses)
    assert list(numbers.spans) == [((0, 16), (17, 34)), ()]
    assert list(numbers.values) == [(0.0, -2.0), ()]
    limit = my_rewards.WordLimit(words=6, penalty=-0.5).score(prompts, responses)
    assert limit.whole_response
    assert list(limit.values) == [(-1.5,), (0.0,)]


def test_the_custom_text_scorer_of_the_page(user_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward made of it as the page's configuration says."""
    from hydra.utils import instantiate

    from finegrained_rlhf.rewards import PrefixDifferenceScorer, TextScorer

    monkeypatch.syspath_prepend(str(user_files))
    scorer = instantiate(yaml.safe_load((user_files / "my_conf/text_scorer/mine.yaml").read_text(encoding="utf-8")))
    assert isinstance(scorer, TextScorer)
    scores = PrefixDifferenceScorer(scorer).score([], ["Fool. All is well."])
    assert list(scores.values) == [(-1.0, 0.75)]


@pytest.mark.scripts
def test_custom_rewards_train_and_the_examples_of_use_run(
    user_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForSeq2SeqLM

    run = tmp_path / "run"
    arguments = ["--config-dir", "my_conf", "experiment=smoke", "reward=mine", f"output_dir={run}", "total_steps=1"]
    finished = run_script("train_ppo", *arguments, cwd=user_files)
    assert finished.returncode == 0, finished.stderr
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    assert all(f'"reward/{name}/weighted"' in metrics for name in ("numbers", "length", "relevance"))
    names: dict[str, Any] = {}
    for body in blocks(ROOT / "docs/use.md", "python"):
        assert "outputs/demo/fine_grained_rlhf" in body
        exec(body.replace("outputs/demo/fine_grained_rlhf", str(run)), names)
    greedy, sampled = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [len(greedy), len(greedy[0]), len(sampled), len(sampled[0])] == [1, 1, 1, 4]
    model = AutoModelForSeq2SeqLM.from_pretrained(run / "policy")  # what the page says of the saved policy
    assert type(model).__name__ == "T5ForConditionalGeneration"
