"""INSCIT from a world to scores: the shortest run of the experiment, and PPO of a reader that it has trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_lab.experiments.inscit import InscitListsTable, InscitPPOTable, InscitTable, InscitWorldTable
from finegrained_rlhf.core.files import read_json, read_jsonl

pytestmark = [pytest.mark.scripts, pytest.mark.slow]


def run(script: str, *words: str, timeout: float = 400.0) -> str:
    done = run_script(script, *words, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every step of the experiment with one training step each."""
    place = tmp_path_factory.mktemp("inscit")
    small = ("articles=40", "train=6", "dev=3", "test=3", "passages=3", "candidates=6")
    steps = [f"{name}_steps=1" for name in ("dpr", "dialki", "few", "reader", "gold", "type")]
    words = [f"settings.{word}" for word in (*small, *steps)]
    run("run_experiment", "pipeline=inscit/world", f"output_dir={place}", "seeds=null", "collect=null", *words)
    return place


def test_every_step_of_the_experiment(made: Path) -> None:
    table = InscitWorldTable("x", "x", str(made), chosen="")
    rows = [table.row(made, system, 0) for system in table.systems]
    assert all(0 <= row["pi_f1"] <= 100 and 0 <= row["rg_f1"] <= 100 for row in rows)
    by_name = {row["system"]: row for row in rows}
    assert by_name["gold_fid"]["pi_f1"] > 90 > by_name["last_turn"]["pi_f1"]  # the evidence that it was given is right
    bounds = read_json(made / "candidates/test_dpr.json")
    assert bounds["earlier_and_retrieved"]["recall"] >= bounds["retrieved"]["recall"]
    shuffled, true = (
        [row["gold"] for row in read_jsonl(made / f"identifier/{name}.jsonl")] for name in ("shuffled", "train")
    )
    assert len(shuffled) == len(true) and shuffled != true


def test_a_reader_is_trained_on_by_ppo(made: Path, tmp_path: Path) -> None:
    run(
        "train_ppo",
        "experiment=inscit/world_ppo",
        f"policy.path={made}/readers/joint",
        f"data={made}/inputs/train_dpr.jsonl",
        f"validation_data={made}/inputs/dev_dpr.jsonl",
        *(f"reward.components.{name}.world={made}/world" for name in ("grounded", "used", "asked")),
        "total_steps=1",
        "validate_every=1",
        "validation_prompts=2",
        "rollout.prompts_per_step=2",
        "rollout.samples_per_prompt=2",
        "rollout.max_new_tokens=8",
        f"output_dir={tmp_path}/ppo",
    )
    measured = read_jsonl(tmp_path / "ppo/eval.jsonl")[-1]
    assert {"truth/silent", "truth/coverage", "reward/grounded/raw", "segments/grounded"} <= measured.keys()
    assert read_json(tmp_path / "ppo/policy/prompt.json")["fusion"]["passages"] == 50


def test_ppo_of_the_reader_against_sft(made: Path) -> None:
    """The experiment goes on in the directory of the other one and makes nothing of it again."""
    before = read_json(made / "said/dpr_fid.json")
    words = [f"settings.{word}=1" for word in ("few_steps", "reader_steps", "dpr_steps")] + ["settings.ppo_steps=2"]
    words += [f"settings.{word}" for word in ("articles=40", "train=6", "dev=3", "test=3", "passages=3")]
    run("run_experiment", "pipeline=inscit/world_ppo", f"output_dir={made}", "seeds=null", "collect=null", *words)
    assert read_json(made / "said/dpr_fid.json") == before
    table = InscitPPOTable("x", "x", str(made), chosen="")
    rows = [table.row(made, system, 0) for system in table.systems]
    assert all(0 <= row["rg_f1"] <= 100 and row["passages"] >= 0 for row in rows)
    assert len(table.training({0: made})["curves"]["ppo/whole"][0]) == 2  # before the first step and after the last


def test_a_reader_of_its_own_lists(made: Path) -> None:
    """The experiment goes on in the directory of the first one, with a reader more."""
    before = read_json(made / "said/dpr_fid.json")
    words = [f"settings.{word}=1" for word in ("few_steps", "reader_steps", "dpr_steps")]
    words += [f"settings.{word}" for word in ("articles=40", "train=6", "dev=3", "test=3", "passages=3")]
    run("run_experiment", "pipeline=inscit/world_lists", f"output_dir={made}", "seeds=null", "collect=null", *words)
    assert read_json(made / "said/dpr_fid.json") == before
    table = InscitListsTable("x", "x", str(made), chosen="")
    rows = [table.row(made, system, 0) for system in table.systems]
    assert all(0 <= row["pi_f1"] <= 100 and 0 <= row["rg_f1"] <= 100 for row in rows)
    lists = [[row["passages"] for row in read_jsonl(made / f"inputs/train_{name}.jsonl")] for name in ("bm25", "dpr")]
    assert len(lists[0]) == len(lists[1]) and lists[0] != lists[1]


def test_the_papers_experiment_on_files(made: Path, tmp_path: Path) -> None:
    """On the world's files, as if they were the published ones, with tiny models in place of pretrained ones."""
    models = tmp_path / "models"
    models.mkdir()
    for name, source in (("bert", "models/bert"), ("t5", "models/t5")):
        (models / name).symlink_to(made / source)
    for start in ("nq", "topiocqa"):
        (models / start).symlink_to(made / "dpr/model")
    files = (f"data={made}/world", f"corpus={made}/world/corpus.jsonl", f"models={models}", "retrieved=6")
    steps = (
        "dpr_epochs=1",
        "dpr_best_from=0",
        "dialki_epochs=1",
        "reader_steps=2",
        "type_epochs=1",
        "precision=fp32",
        "threads=1",
    )
    words = [f"settings.{word}" for word in (*files, *steps)]
    run("run_experiment", "pipeline=inscit/paper", f"output_dir={tmp_path}/out", *words, timeout=1200.0)
    found = read_json(tmp_path / "out/paper.json")
    assert {row["system"] for row in found["rows"]} == set(InscitTable.systems)
    assert [(row["split"], row["retriever"]) for row in found["retrieval"]] == [
        (split, name) for split in ("test", "dev") for name in InscitTable.retrievers
    ]
    assert [row["system"] for row in found["dev"]] == list(InscitTable.systems)
    page = (tmp_path / "out/paper.md").read_text()
    of_dev = read_json(tmp_path / "out/seed_0/scores/dev_last_turn.json")
    assert f"{of_dev['pi_f1']:.3g} (10.5)" in page and "(79.8)" in page and "(44.3)" in page
