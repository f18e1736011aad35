"""A hundred more wrong inputs over all commands: exit status 2, one line that begins with `error:`, nothing made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy
import pytest
from refusals import quick_hydra, tree  # noqa: F401
from safetensors.numpy import save_file

from finegrained_rlhf.launch.app import run_command

FILES = {
    "empty.json": "",
    "empty.jsonl": "",
    "null.json": "null",
    "list.jsonl": "[1, 2]\n",
    "number.json": "3",
    "whole.json": '{\n "a": 1\n}\n',
    "cut.jsonl": '{"id": "a", "text": "x"}\n{"id": "b", "te',
    "nan.jsonl": '{"id": "a", "text": "x", "label": NaN, "score": NaN}\n',
    "twice.jsonl": '{"id": "a", "text": "Who?"}\n{"id": "a", "text": "Who?"}\n',
    "prompts.jsonl": '{"id": "a", "text": "Who?"}\n',
    "blank.jsonl": '{"id": "a", "text": "  "}\n',
    "texts.jsonl": '{"text": "x", "label": "a"}\n{"text": "y", "label": "b"}\n',
    "alike.jsonl": '{"text": "x", "label": "a"}\n{"text": "y", "label": "a"}\n',
    "dialogue.jsonl": '{"id": "d", "turns": [{"role": "system", "text": "x"}], "passages": [{"spans": ["y"]}]}\n',
    "notes.txt": "some words\n",
    "page.html": "<html>",
    "run.trec": "q1 Q0 d1 one 0.5 x\n",
    "passages.jsonl": '{"id": "p", "text": "words"}\n{"id": "p", "text": "again"}\n',
    "edits.jsonl": '{"context": "x", "draft": "y"}\n',
    "my_conf/taxonomy/damaged.yaml": "name: [unclosed\n",
    "my_conf/taxonomy/empty.yaml": "",
    "my_conf/taxonomy/only_comments.yaml": "# nothing yet\n",
    "my_conf/taxonomy/twice.yaml": "name: a\nname: b\n",
    "my_conf/taxonomy/tab.yaml": "a:\n\t- b\n",
    "my_conf/taxonomy/list.yaml": "- a\n- b\n",
    "my_conf/taxonomy/text.yaml": "words\n",
    "my_conf/taxonomy/tag.yaml": "a: !!python/object:os.system x\n",
    "my_conf/taxonomy/two.yaml": "---\na: 1\n---\nb: 2\n",
    "my_conf/taxonomy/itself.yaml": "defaults: [itself]\n",
    "my_conf/taxonomy/anchor.yaml": "a: &x [*x]\n",
    "my_conf/taxonomy/nowhere.yaml": "name: ${nowhere}\n_target_: finegrained_rlhf.feedback.Taxonomy\ncategories: {}\n",
    "my_conf/taxonomy/open.yaml": "name: ${unclosed\n",
    "my_conf/taxonomy/defaults.yaml": "defaults: 3\n",
    "my_conf/taxonomy/gone.yaml": "defaults: [nothing_there]\n",
    "my_conf/taxonomy/class.yaml": "_target_: finegrained_rlhf.feedback.Taxonomyy\n",
    "my_conf/taxonomy/number.yaml": "_target_: 3\n",
    "my_conf/taxonomy/short.yaml": "_target_: finegrained_rlhf.feedback.Taxonomy\nname: x\n",
    "my_conf/taxonomy/key.yaml": "? [a, b]\n: c\n",
    "my_conf/experiment/broken.yaml": "# @package _global_\nseed: {\n",
    "my_conf/reward/alone.yaml": "components: [a]\n",
}
FEEDBACK = ("data=whole.json",)
OWN = ("--config-dir", "my_conf", *FEEDBACK)
SMOKE = ("experiment=smoke", "output_dir=run")
CLASSIFIER = ("model=whole", "output_dir=run")
GEDI = ("policy.path=folder", "output_dir=run")

FAST: list[tuple[str, tuple[str, ...], str]] = [
    ("inspect_feedback", (*OWN, "taxonomy=damaged"), "my_conf/taxonomy/damaged.yaml, line 2: not valid YAML"),
    ("inspect_feedback", (*OWN, "taxonomy=empty"), "my_conf/taxonomy/empty.yaml: the file is empty"),
    ("inspect_feedback", (*OWN, "taxonomy=twice"), "twice.yaml, line 2: not valid YAML (found duplicate key name)"),
    ("inspect_feedback", (*OWN, "taxonomy=latin"), "my_conf/taxonomy/latin.yaml: not UTF-8 text"),
    ("inspect_feedback", (*OWN, "taxonomy=itself"), "names itself"),
    (
        "inspect_feedback",
        (*OWN, "taxonomy=dammaged"),
        "taxonomy=dammaged does not exist; expected one of edit_mass, ",
    ),
    ("inspect_feedback", ("--config-dir", "gone", *FEEDBACK), "directory"),
    ("inspect_feedback", ("--config-dir", "gone", "--help"), "--config-dir gone: no such directory"),
    ("inspect_feedback", ("--confg-dir", "my_conf"), "unrecognized arguments: --confg-dir"),
    ("inspect_feedback", ("ä=1",), "ä=1: cannot be read as KEY=VALUE"),
    ("inspect_feedback", ("data",), "data: cannot be read as KEY=VALUE"),
    ("inspect_feedback", ("data=ä.json",), "data: ä.json: no such file or directory"),
    ("inspect_feedback", ("data=it's.json",), "data: it's.json: no such file or directory"),
    ("inspect_feedback", ("data=a=b.json",), "data: a=b.json: no such file or directory"),
    ("train_ppo", (*SMOKE, "lr=1e-4"), "unknown key 'lr'; did you mean optimizer.lr?"),
    ("train_ppo", (*SMOKE, "rollout.samples=1"), "did you mean rollout.samples_per_prompt?"),
    ("train_ppo", (*SMOKE, "+rollout.sampels_per_prompt=1"), "did you mean samples_per_prompt?"),
    ("train_ppo", (*SMOKE, "data.path=x"), "unknown key 'data.path'; data takes a value itself: data=…"),
    ("train_reward_model", ("reward_model=relevance", "epochs=1"), "did you mean reward_model.epochs?"),
    ("train_classifier", ("batch_size=8",), "did you mean batches.batch_size?"),
    ("search", ("index=folder", 'queries=[""]'), "queries: expected texts with words, got ['']"),
    ("evaluate_detox", ("checkpoint=folder", "data=prompts.jsonl", "output=o.json"), "scorers: expected at least one"),
]
SLOW: list[tuple[str, tuple[str, ...], str]] = [
    *(
        ("inspect_feedback", (*OWN, f"taxonomy={name}"), said)
        for name, said in [
            ("only_comments", "the file is empty"),
            ("tab", "line 2: not valid YAML"),
            ("list", "taxonomy: expected the keys of a Taxonomy"),
            ("text", "taxonomy: unknown key"),
            ("tag", "line 1: not valid YAML (could not determine a constructor"),
            ("two", "line 3: not valid YAML"),
            ("anchor", "names itself"),
            ("nowhere", "taxonomy.name: Interpolation key 'nowhere' not found"),
            ("open", "${unclosed"),
            ("defaults", "defaults must be a list (got int)"),
            ("gone", "Could not load 'taxonomy/nothing_there'"),
            ("class", "finegrained_rlhf.feedback has no Taxonomyy"),
            ("number", "taxonomy"),
            ("short", "give a value for taxonomy.categories"),
            ("key", "not valid YAML (found unhashable key)"),
            ("3", "taxonomy=3 does not exist"),
        ]
    ),
    ("train_ppo", ("--config-dir", "my_conf", "experiment=broken"), "broken.yaml, line"),
    ("train_ppo", ("--config-dir", "my_conf", *SMOKE, "reward=alone"), "Cannot merge"),
    ("sweep", ("--config-dir", "my_conf", "experiment=broken", "output_dir=s", "seed=0,1"), "broken.yaml, line"),
    ("train_ppo", ("--config-dir",), "--config-dir"),
    ("train_ppo", ("--config-name", "nothing", *SMOKE), "nothing"),
    ("train_ppo", (*SMOKE, "--cfg", "jobs"), "--cfg"),
    ("train_ppo", (*SMOKE, "epochs=1"), "did you mean ppo.epochs?"),
    ("train_ppo", (*SMOKE, "rollout.temprature=1"), "did you mean rollout.temperature?"),
    ("train_ppo", (*SMOKE, "kl.beta=1"), "did you mean ppo.kl.beta?"),
    ("train_ppo", (*SMOKE, "reward.weight.relevance=1"), "did you mean reward.weights.relevance?"),
    ("train_ppo", (*SMOKE, "value.path.x=1"), "value.path takes a value itself"),
    ("train_ppo", (*SMOKE, "seed=1_0x"), "seed: expected a whole number, got '1_0x'"),
    ("train_ppo", (*SMOKE, "seed=１"), "seed: expected a whole number"),
    ("train_ppo", (*SMOKE, "seed=range(1,x)"), "seed"),
    ("train_ppo", (*SMOKE, "seed=1,2"), "seed"),
    ("train_ppo", (*SMOKE, "optimizer.betas=[0.9"), "optimizer.betas: expected a list of 2 numbers"),
    ("train_ppo", (*SMOKE, "reward.weights={relevance: ä}"), "reward.weights.relevance: expected a number, got 'ä'"),
    ("train_ppo", (*SMOKE, "policy.path=${nowhere}/t5"), "Interpolation key 'nowhere' not found"),
    ("train_ppo", (*SMOKE, "policy.path=${oc.env:NOT_SET_ANYWHERE}"), "NOT_SET_ANYWHERE"),
    ("train_ppo", (*SMOKE, "policy.path=${open"), "policy.path"),
    ("train_ppo", (*SMOKE, "data=/dev/null/x"), "data: /dev/null/x: no such file or directory"),
    ("train_ppo", (*SMOKE, "data=" + "x" * 300), "data: "),
    ("train_ppo", ("experiment=../smoke", "output_dir=run"), "experiment=../smoke"),
    ("train_ppo", ("experiment=smoke,smoke", "output_dir=run"), "experiment"),
    ("train_ppo", ("experiment=Smoke", "output_dir=run"), "experiment=Smoke does not exist"),
    ("train_ppo", ("=1",), "error: "),
    ("train_ppo", ("+=1",), "error: "),
    ("train_ppo", ("",), "cannot be read as KEY=VALUE"),
    (
        "train_sft",
        ("data=empty.json", "validation_data=null", "policy.path=folder", "output_dir=run"),
        "folder: no model here",
    ),
    (
        "train_sft",
        ("data=prompts.jsonl", "validation_data=null", "policy.path=folder", "output_dir=run"),
        "folder: no model here",
    ),
    (
        "train_sft",
        ("data=twice.jsonl", "validation_data=null", "policy.path=folder", "output_dir=run"),
        "folder: no model here",
    ),
    ("train_sft", ("learning_rate=1",), "did you mean optimizer.lr?"),
    ("train_sft", ("num_train_epochs=1",), "did you mean epochs?"),
    ("train_classifier", (*CLASSIFIER, "data=empty.jsonl"), "empty.jsonl"),
    ("train_classifier", (*CLASSIFIER, "data=list.jsonl"), "list.jsonl, record 0: expected a JSON object a line"),
    ("train_classifier", (*CLASSIFIER, "data=whole.json"), "one JSON document; expected JSON lines"),
    ("train_classifier", (*CLASSIFIER, "data=cut.jsonl"), "cut.jsonl, record 1: not valid JSON"),
    ("train_classifier", (*CLASSIFIER, "data=nan.jsonl"), "nan.jsonl, record 0"),
    ("train_classifier", (*CLASSIFIER, "data=alike.jsonl"), "classes: expected two different ones or more, got a"),
    ("train_classifier", (*CLASSIFIER, "data=texts.jsonl"), "whole"),
    ("train_gedi", (*GEDI, "data=alike.jsonl"), "folder: no model here"),
    ("train_gedi", (*GEDI, "data=texts.jsonl", "generative=2"), "generative"),
    (
        "train_dpr",
        ("query_model=whole", "passage_model=whole", "output_dir=run", "data=prompts.jsonl"),
        "prompts.jsonl",
    ),
    ("train_reward_model", ("reward_model=relevance", "model=whole", "data=null.json", "output_dir=run"), "null.json"),
    (
        "train_reward_model",
        ("reward_model=relevance", "model=whole", "data=number.json", "output_dir=run"),
        "number.json",
    ),
    ("train_reward_model", ("reward_model=relevance", "optimizer.lr=1"), "did you mean reward_model.optimizer.lr?"),
    ("evaluate_dialki", ("checkpoint=whole", "data=dialogue.jsonl", "output_dir=run"), "unknown role 'system'"),
    ("identify_knowledge", ("checkpoint=whole", "turns=[Who?]"), "document"),
    ("identify_knowledge", ("checkpoint=folder", "turns=[Who?]", "document=gone.txt"), "document: gone.txt: no such"),
    ("make_response_data", ("data=dialogue.jsonl", "output_dir=run"), "unknown role 'system'"),
    ("make_tiny_models", ("data=notes.txt", "output_dir=m", "t5.layers=0"), "layers"),
    ("make_longformer", ("model=folder", "output_dir=m"), "folder"),
    ("convert_dpr", ("checkpoint=notes.txt", "model=folder", "output_dir=m"), "folder"),
    ("build_index", ("corpus=passages.jsonl", "output_dir=i", "retriever=bm25"), "passages.jsonl"),
    ("build_index", ("corpus=empty.jsonl", "output_dir=i", "retriever=bm25"), "empty.jsonl"),
    ("search", ("index=folder", "queries=[ä]"), "folder"),
    ("search", ("index=folder",), "no index here"),
    ("search", ("index=folder", "queries=[a]", "k=0"), "k: expected at least 1, got 0"),
    ("fuse_runs", ("inputs=[run.trec,gone]", "output=o"), "gone"),
    ("fuse_runs", ("inputs=run.trec", "output=o"), "inputs: expected a list of"),
    ("evaluate", ("checkpoint=folder", "data=prompts.jsonl", "output=o.json"), "folder"),
    ("evaluate_reward_model", ("path=folder", "data=null.json", "output=o.json"), ""),
    ("rewrite", ("checkpoint=whole", "turns=[a,b]"), "turns: expected question, answer"),
    ("rewrite", ("checkpoint=whole", "turns=[' ']"), "turns"),
    ("rewrite", ("checkpoint=folder", "turns=[Who?]"), "folder"),
    ("generate", ("checkpoint=folder", "input=blank.jsonl", "output=o.jsonl"), ""),
    ("sample_outputs", ("checkpoint=folder", "data=prompts.jsonl", "output=o", "samples=0"), "decoding: need n >= 1"),
    ("export", ("run=folder", "output_dir=copy"), "folder"),
    ("report", ("run=folder", "output=page.html"), "folder"),
    ("compare", ("folder",), ""),
    ("compare", ("folder", "gone"), "runs: gone: no such file or directory"),
    ("runs", ("gone",), "gone"),
    ("reweigh", ("run=folder", "reward.weights.ä=1"), ""),
    ("show_user_memory", ("memory=gone.db", "user=a", "output=o.html"), "gone.db: no such file"),
    (
        "show_user_memory",
        ("memory=notes.txt", "user=a", "output=o.html"),
        "notes.txt: expected the file of a memory: file",
    ),
    ("show_user_memory", ("memory=folder", "user=a", "output=o.html"), "folder: is a directory"),
    ("edits_to_feedback", ("data=edits.jsonl", "output=o.json"), "edits.jsonl, record 0"),
    ("edits_to_feedback", ("output=o.json",), ""),
    ("run_experiment", ("pipeline=factworld/demo", "seeds=[]"), "seeds"),
    ("doctor", (*SMOKE, "doctor.timeout=0"), "timeout"),
]


def refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, *words: str
) -> str:
    """The one line that a command says."""
    from finegrained_rlhf.launch.commands import as_keys

    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    (place / "my_conf/taxonomy/latin.yaml").write_bytes(b"name: \xe9\n")
    (place / "whole").mkdir()  # a model, as far as its files tell
    (place / "whole/config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
    (place / "whole/vocab.txt").write_text("[PAD]\n[UNK]\n")
    save_file({"one": numpy.zeros(1, numpy.float32)}, place / "whole/model.safetensors")
    (place / "folder").mkdir()
    (place / "folder/inside").write_text("nothing of ours")
    monkeypatch.chdir(place)
    before = tree(place)
    monkeypatch.setattr(sys, "argv", [command, *as_keys(command, words)])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(SystemExit) as ended:
        run_command(command)
    said = capsys.readouterr()
    assert ended.value.code == 2, said.err
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in said.err, said.err
    assert tree(place) == before
    return errors[0]


def name(case: tuple[str, tuple[str, ...], str]) -> str:
    return json.dumps(f"{case[0]} {' '.join(case[1])}"[:90])


@pytest.mark.parametrize("case", FAST, ids=name)
def test_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, tuple[str, ...], str],
) -> None:
    command, words, said = case
    assert said in refused(tmp_path, monkeypatch, capsys, command, *words)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=name)
def test_one_line_of_all_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, tuple[str, ...], str],
) -> None:
    command, words, said = case
    assert said in refused(tmp_path, monkeypatch, capsys, command, *words)


def test_there_are_a_hundred() -> None:
    assert len({(command, words) for command, words, _ in (*FAST, *SLOW)}) >= 100
