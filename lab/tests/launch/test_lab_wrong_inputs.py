"""Wrong inputs of the laboratory's commands: exit status 2, one line that begins with `error:`, nothing made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from refusals import quick_hydra, tree  # noqa: F401

from finegrained_rlhf.core.extensions import extensions
from finegrained_rlhf.launch.app import run_command

(LAB,) = [extension for extension in extensions() if extension.package == "finegrained_lab"]
COMMANDS = [name for commands in LAB.commands.values() for name in commands]
CASES = [
    ("evaluate_scai", ("data=folder/inside", "predictions=folder/inside"), "folder/inside"),
    ("evaluate_inscit", ("data=folder/inside", "predictions=folder/inside"), "folder/inside"),
    ("evaluate_inscit", ("data=folder/inside",), ""),
    ("make_corpus", ("pages=folder", "output_dir=run"), "folder"),
    ("read_public_feedback", ("output=o.json",), "give"),
    ("measure_drift", ("run=folder",), "folder"),
    ("measure_regret", ("output_dir=run", "runs=0"), "runs"),
    ("make_pahf_world", ("output_dir=run", "users=0"), "users"),
    ("make_style_world", ("output_dir=run", "contexts=7"), "contexts"),
    ("make_style_world", ("output_dir=run", "foreign=2"), "foreign"),
    ("make_bios_world", ("output_dir=run", "scenarios=[nothing]"), "scenarios"),
    ("make_bios_world", ("output_dir=run", "documents=[]"), "documents"),
    ("make_rewrite_world", ("output_dir=run", "seed=-1"), "seed"),
    ("simulate_annotators", ("tasks=folder", "output_dir=e", "noise=9"), "noise must be between 0 and"),
    ("simulate_annotators", ("tasks=folder", "output_dir=e"), "file folder/manifest.json"),
    ("run_prelude", ("contexts=folder/inside", "preferences=folder/inside", "output_dir=run"), ""),
    ("run_prelude", ("contexts=gone.jsonl", "preferences=null.json", "output_dir=run"), "gone.jsonl: no such file"),
    ("run_pahf", ("output_dir=run", "phases=[a,b]"), "phases"),
    ("run_pahf", ("output_dir=run", "phases=prompts.jsonl"), "phases: expected a list of"),
    ("run_coreset", ("conversations=folder/inside", "output_dir=run"), ""),
    ("make_disambig_docs", ("data=folder/inside", "output=o.jsonl"), ""),
    ("make_prelude_contexts", ("documents=folder/inside", "output_dir=run"), "folder/inside"),
    ("make_prelude_contexts", ("documents=folder/inside", "output_dir=run", "task=letter"), "task: expected one of"),
    ("prepare_models", ("output_dir=m", "wheels=nowhere"), "wheels: nowhere: no such file or directory"),
    (
        "prepare_models",
        ("output_dir=m", "models=[bert]"),
        "models: expected some of smollm2, minilm, mpnet, gemma3,",
    ),
    (
        "prepare_models",
        ("output_dir=m", "models=[]"),
        "models: expected one or more of smollm2, minilm,",
    ),
    *((command, ("no_such_key=1",), "no_such_key") for command in COMMANDS),
]


@pytest.mark.parametrize(("command", "words", "part"), CASES, ids=[f"{c} {' '.join(words)}" for c, words, _ in CASES])
def test_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    words: tuple[str, ...],
    part: str,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inside").write_text("nothing of ours")
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    monkeypatch.setattr(sys, "argv", [command, *words])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit) as ended:
        run_command(command)
    printed = capsys.readouterr().err
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert ended.value.code == 2 and len(errors) == 1 and "Traceback" not in printed, printed
    assert part in errors[0] and tree(tmp_path) == before
