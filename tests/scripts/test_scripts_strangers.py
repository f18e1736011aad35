"""Every command that takes a directory or a file of somebody else: nothing in it runs, and what is refused is one line.

A new command must be placed in `READS`, with arguments that hand it what strangers make (`helpers/strangers.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from report_toy import tags_of
from script_runs import ROOT, run_script
from strangers import SCRIPT, Strangers, make_strangers

from finegrained_rlhf.launch.commands import NAMES, names

NOTHING: tuple[str, ...] = ()
"""Of a command that reads no file of anybody: it makes a world of its own, or runs the other commands."""
OUT = "output={out}"
DIR = "output_dir={out}"
READS: dict[str, tuple[str, ...]] = {
    "init": ("name={out}", "data={prompts}", "reward=judge", "judge=x", "policy={model}", "measure=false"),
    "try": ("name={model}",),
    "train_sft": (DIR, "data={prompts}", "validation_data=null", "policy.path={model}"),
    "train_pairs": (DIR, "data={prompts}", "validation_data=null", "policy.path={model}"),
    "train_classifier": (DIR, "data={texts}", "validation_data=null", "model={model}"),
    "train_gedi": (
        *(DIR, "data={texts}", "validation_data=null", "policy.path={plain}", "resume={model}"),
        "codes={{c0: red, c1: blue}}",
    ),
    "train_reward_model": (
        DIR,
        "data={feedback}",
        "validation_data={feedback}",
        "model={model}",
        "reward_model=relevance",
    ),
    "train_ppo": (
        *(DIR, "data={prompts}", "validation_data=null", "policy.path={model}", "value.path={model}"),
        *("reward=preference", "reward.components.preference.path={model}"),
    ),
    "train_dpr": (DIR, "data={towers}", "validation_data=null", "query_model={model}", "passage_model={model}"),
    "train_dialki": (DIR, "data={dialogues}", "validation_data=null", "model={model}"),
    "train_conqrr": (
        *(DIR, "data.path={questions}", "labels={data}", "index={model}"),
        *("policy.path={model}", "validation_data=null", "validation_labels=null"),
    ),
    "doctor": ("experiment=smoke", "prepare=null", "data={prompts}", "policy.path={model}", "value.path={model}"),
    "inspect_feedback": ("data={data}", "taxonomy=qa_feedback"),
    "inspect_prompts": ("data={data}",),
    "inspect_inscit": ("data={data}",),
    "sweep": (
        "experiment=smoke",
        "prepare=null",
        "data={data}",
        "output_dir={run}",
        "reward.weights.relevance=0.1,0.2",
    ),
    "run_experiment": NOTHING,
    "stress_test": (
        *("reward=preference", "reward.components.preference.path={model}", "data={feedback}", OUT),
        "checkpoint={model}",
    ),
    "evaluate_judge": (
        "data={feedback}",
        OUT,
        "scorers.relevance.judge.remote.url=http://127.0.0.1:9/",
        "scorers.relevance.judge.remote.budget_s=1",
        "scorers.relevance.judge.model=x",
    ),
    "attack_judge": (
        *("data={data}", OUT, "judge.remote.url=http://127.0.0.1:9/", "judge.remote.budget_s=1"),
        "judge.model=x",
    ),
    "generate": ("checkpoint={run}", "input={prompts}", OUT, "best_of=2"),
    "sample_outputs": ("checkpoint={model}", "data={prompts}", OUT),
    "export": ("run={run}", DIR),
    "serve_rewards": ("reward=preference", "reward.components.preference.path={model}", "port=0"),
    "identify_knowledge": ("checkpoint={model}", "input={dialogues}", OUT),
    "identify_evidence": ("checkpoint={model}", "data={inscit}", "input={dialogues}", OUT),
    "generate_responses": ("checkpoint={model}", "dialki={model}", "input={dialogues}", OUT),
    "rewrite": ("checkpoint={model}", "input={questions}", OUT),
    "rewrite_few_shot": (
        "data.path={questions}",
        "demonstrations.path={questions}",
        OUT,
        "writer=policy",
        "writer.checkpoint={model}",
    ),
    "evaluate": ("checkpoint={run}", "data={prompts}", OUT, "best_of=2"),
    "evaluate_reward_model": ("path={model}", "data={feedback}", OUT, "taxonomy=qa_feedback"),
    "evaluate_dialki": ("checkpoint={model}", "data={dialogues}", DIR),
    "evaluate_detox": ("checkpoint={model}", "data={prompts}", OUT, "judge_model={model}"),
    "evaluate_inscit": ("data={data}", "predictions={data}", OUT),
    "evaluate_response_types": ("path={model}", "data={inscit}", OUT),
    "evaluate_rewrites": ("data.path={questions}", "index={index}", OUT),
    "evaluate_scai": ("data={data}", "predictions={data}"),
    "run_prelude": ("contexts={data}", "preferences={data}", DIR, "plots=false"),
    "run_pahf": ("phases=[{data},{data},{data},{data}]", DIR, "plots=false"),
    "measure_regret": NOTHING,
    "show_user_memory": ("memory={memory}", "user=ann", OUT),
    "serve_memory": ("memory={memory}", "user=ann"),
    "user_notes": ("memory={memory}", "user=ann"),
    "catch_up": ("memory={memory}", "user=ann"),
    "run_coreset": ("conversations={data}", DIR),
    "measure_drift": ("run={run}", "data={feedback}"),
    "measure_revisions": ("scorer.path={model}", "answers={feedback}", OUT),
    "reweigh": ("run={run}",),
    "report": ("run={run}", OUT),
    "runs": ("directory={run}",),
    "serve": NOTHING,  # until Ctrl-C: tests/web opens what strangers made
    "compare": ("runs=[{run},{above}]",),
    "make_annotation_tasks": (
        *("outputs={data}", DIR, "annotators=[ann]", "taxonomy=qa_feedback", "select=uncertain"),
        "select.models=[{model}]",
    ),
    "read_annotations": ("exports=[{exports}]", "tasks={project}", OUT),
    "measure_agreement": ("annotations={data}", "tasks={project}", OUT),
    "adjudicate": ("annotations={data}", "tasks={project}", OUT),
    "edits_to_feedback": ("memory={memory}", "users=[ann]", OUT),
    "read_public_feedback": ("public_feedback@source=mqm", "source.data={data}", OUT),
    "make_human_evaluation": ("data={data}", "predictions={{a: {data}}}", "raters=[ann]", DIR),
    "read_human_evaluation": ("exports={{ann: {data}}}", "tasks={project}", OUT),
    "score_human_evaluation": ("ratings={data}",),
    "simulate_annotators": ("tasks={project}", DIR),
    "make_factworld": NOTHING,
    "annotate_factworld": ("input={data}", OUT),
    "make_dialogue_world": NOTHING,
    "make_rewrite_world": NOTHING,
    "make_tone_world": NOTHING,
    "make_inscit_world": NOTHING,
    "make_style_world": NOTHING,
    "make_prelude_contexts": ("documents={data}", DIR),
    "make_pahf_world": NOTHING,
    "make_bios_world": NOTHING,
    "make_disambig_docs": ("data={data}", OUT, "llm.remote.url=http://127.0.0.1:9/", "llm.model=x"),
    "make_response_data": ("data={dialogues}", DIR, "dialki={model}"),
    "retrieve_evidence": ("data={inscit}", "index={index}", OUT),
    "make_dpr_data": ("data={inscit}", "index={index}", "corpus={corpus}", OUT),
    "make_question_dpr_data": ("data.path={questions}", "index={index}", "corpus={corpus}", OUT),
    "make_identifier_data": ("data={data}", "retrieved={data}", OUT),
    "make_reader_inputs": ("data={data}", "retrieved={data}", OUT),
    "read_reader_outputs": ("data={data}", "inputs={data}", "responses={data}", OUT),
    "make_response_types": ("data={data}", OUT),
    "make_tiny_models": ("data={data}", DIR),
    "make_longformer": ("model={model}", DIR),
    "convert_dpr": ("checkpoint={data}", "model={plain}", DIR),
    "prepare_models": (DIR, "wheels={exports}"),
    "make_corpus": ("pages={exports}", DIR),
    "ask": ("docs={exports}", "question=who?", "index={out}", "encoder={model}"),
    "build_index": ("corpus={corpus}", DIR, "retriever=dense", "retriever.encoder.path={model}"),
    "search": ("index={index}", "input={prompts}", OUT),
    "fuse_runs": ("inputs=[{data},{data}]", OUT),
    "label_passages": ("data.path={questions}", "corpus={corpus}", "index={index}", OUT),
}
"""Every command, and how it is given what strangers made; what stands for a model is each of `MODELS` in turn."""
MODELS = ("model/code", "model/pickled", "model/with_adapter", "run")
RUNS = ("run", "run/policy", "run/checkpoints/step_4", "run/checkpoints/step_4/policy", "model/plain")
"""What stands for a checkpoint where a reward chooses; the last lies below a run to which it does not belong."""
STAND_FOR = {
    "encoder.path={model}": ("model/sentences", *MODELS),
    "{model}": MODELS,
    "checkpoint={run}": RUNS,
    "{run}": ("run",),
    "{index}": ("index/named", "index/pickled"),
}
"""What is put in turn for the first of these that a command's arguments have."""
QUICK = (
    ("generate", "run"),
    ("evaluate", "run/checkpoints/step_4/policy"),
    ("generate", "model/plain"),
    ("sample_outputs", "model/code"),
    ("train_sft", "model/pickled"),
    ("build_index", "model/sentences"),
    ("report", "run"),
    ("show_user_memory", ""),
    ("search", "index/named"),
    ("search", "index/pickled"),
)
NAMED = {
    ("generate", "run"): ("config.yaml", "numpy.load", "trust=numpy.load"),
    ("evaluate", "run/checkpoints/step_4/policy"): ("run/config.yaml", "numpy.load"),
    ("generate", "model/plain"): ("best_of needs a reward",),
    ("sample_outputs", "model/code"): ("model/code", "of_nobody"),
    ("train_sft", "model/pickled"): ("safetensors",),
    ("build_index", "model/sentences"): ("modules.json", "marking.Mark"),
    ("search", "index/named"): ("marking.Mark",),
    ("search", "index/pickled"): ("index/pickled",),
}
"""What the refusal says."""


def cases() -> Iterator[tuple[str, str]]:
    """Every command that reads, with each stranger that stands for its model, run or index."""
    for command, arguments in READS.items():
        text = " ".join(arguments)
        several = next((those for part, those in STAND_FOR.items() if part in text), ("",) if arguments else ())
        yield from ((command, stranger) for stranger in several)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Strangers:
    return make_strangers(tmp_path_factory.mktemp("strangers"))


def opened(strangers: Strangers, command: str, stranger: str, out: Path) -> str:
    """Run a command on what strangers made, answering every question with yes; what it printed on standard error."""
    root = strangers.root
    places = {
        "data": root / ("payload.json" if command in ("evaluate_scai", "annotate_factworld") else "payload.jsonl"),
        **{name: root / f"{name}.jsonl" for name in ("prompts", "texts", "corpus", "towers", "questions", "dialogues")},
        **{name: root / f"{name}.json" for name in ("feedback", "inscit")},
        **{name: root / name for name in ("exports", "project")},
        **{"memory": root / "memory.db", "plain": root / "model" / "plain", "above": root, "out": out},
        **dict.fromkeys(("model", "run", "index"), root / stranger),
    }
    arguments = [argument.format(**places) for argument in READS[command]]
    done = run_script(
        command, *arguments, cwd=root, stdin="y\n" * 20, environment={"HF_MODULES_CACHE": str(out) + "_m"}
    )
    assert strangers.markers == [], f"{strangers.markers}: {done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    assert "[y/N]" not in done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == (done.returncode == 2), done.stderr
    return done.stderr


def test_every_command_has_its_place() -> None:
    assert set(READS) == set(names()) if find_spec("finegrained_lab") else set(READS) > set(NAMES)
    assert {command for command, _ in cases()} == {name for name, arguments in READS.items() if arguments}
    assert set(QUICK) <= set(cases()) and set(NAMED) <= set(QUICK)


def test_the_page_names_every_command_that_reads() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = page.partition("## Every command")[2]
    assert [name for name, arguments in READS.items() if (f"`{name}`" in table) != bool(arguments)] == [
        "run_experiment",
        "serve",
    ]


@pytest.mark.scripts
@pytest.mark.parametrize(("command", "stranger"), QUICK)
def test_nothing_of_a_stranger_runs(strangers: Strangers, tmp_path: Path, command: str, stranger: str) -> None:
    said = opened(strangers, command, stranger, tmp_path / "out.html")
    assert all(part in said for part in NAMED.get((command, stranger), ())), said
    if command == "report":
        page = (tmp_path / "out.html").read_text(encoding="utf-8")
        assert SCRIPT not in page and "document.title='ran'</script>" not in page
        links = [
            value for _, attributes in tags_of(page) for key, value in attributes.items() if key in ("href", "src")
        ]
        assert not any(link.lower().startswith("javascript:") for link in links)


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.parametrize(("command", "stranger"), [case for case in cases() if case not in QUICK])
def test_nothing_of_a_stranger_runs_in_any_command(
    strangers: Strangers, tmp_path: Path, command: str, stranger: str
) -> None:
    opened(strangers, command, stranger, tmp_path / "out")


def test_the_payloads_are_sound(tmp_path: Path) -> None:
    """What is refused everywhere else does leave a marker where it is opened without care."""
    import pickle
    import runpy

    made = Strangers(tmp_path)
    pickle.loads(made.pickle(tmp_path / "x", "pickle").read_bytes())
    made.code(tmp_path, "code")
    runpy.run_path(str(tmp_path / "marking.py"))
    assert made.markers == ["MARKER_code", "MARKER_pickle"]
