"""The shortest real runs of detoxification: classifier, class-conditional model, PPO, steering and measuring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from script_runs import rows, run_in_two_processes, run_script

from finegrained_rlhf.core.files import read_json

pytestmark = pytest.mark.scripts
OF_FILE = ("max_new_tokens=null",)
QUICK = ("processes.precision=fp32", "processes.threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world, tiny models, a base model of two steps, and a classifier of two steps."""
    path = tmp_path_factory.mktemp("detox")
    sizes = ("train=12", "dev=4", "test=6", "texts=24", "texts_dev=4", "judge_texts=0", "labelled_train=24")
    done(run_script("make_tone_world", f"output_dir={path}/world", *sizes, "labelled_dev=8"))
    done(
        run_script("make_tiny_models", f"data={path}/world/corpus.txt", f"output_dir={path}/models", "gpt2.d_model=32")
    )
    train = (f"data={path}/world/texts.jsonl", f"validation_data={path}/world/texts_dev.jsonl", "whole_texts=true")
    model = f"policy.path={path}/models/gpt2"
    done(run_script("train_sft", f"output_dir={path}/base", *train, model, "total_steps=2", *QUICK))
    done(run_script(*classifier(path, path / "classifier")))
    return path


def done(result: object) -> str:
    assert result.returncode == 0, result.stderr  # type: ignore[attr-defined]
    return str(result.stdout)  # type: ignore[attr-defined]


def classifier(folder: Path, output: Path) -> list[str]:
    return [
        "train_classifier",
        f"output_dir={output}",
        f"data={folder}/world/labelled_train.jsonl",
        f"validation_data={folder}/world/labelled_dev.jsonl",
        f"model={folder}/models/bert",
        "total_steps=2",
        "dropout=0",
        "batches.batch_size=5",
        "batches.micro_batch_size=2",
        "optimizer.eps=1e-4",
        *QUICK,
    ]


def gedi(folder: Path, output: Path) -> list[str]:
    return [
        "train_gedi",
        f"output_dir={output}",
        f"data={folder}/world/labelled_train.jsonl",
        f"validation_data={folder}/world/labelled_dev.jsonl",
        f"policy.path={folder}/base",
        "codes={mild:quiet,toxic:rude}",
        "total_steps=2",
        "batch_size=5",
        "dropout=0",
        "optimizer.eps=1e-4",
        *QUICK,
    ]


def evaluate(folder: Path, output: Path, *more: str) -> list[str]:
    return [
        "evaluate_detox",
        f"data={folder}/world/test.jsonl",
        f"output={output}",
        f"judge_model={folder}/base",
        "oracle=tone_world",
        "+text_scorer@scorers.reward=classifier",
        f"scorers.reward.path={folder}/classifier",
        "+text_scorer@scorers.truth=tone_world",
        "max_new_tokens=8",
        *QUICK,
        *more,
    ]


def same_metrics(left: Path, right: Path, tolerance: float = 1e-4) -> None:
    """Two runs trained the same steps on the same numbers."""
    for one, other in zip(rows(left / "metrics.jsonl"), rows(right / "metrics.jsonl"), strict=True):
        for name in ("loss", "gradient_norm"):
            assert one[name] == pytest.approx(other[name], rel=tolerance), name


@pytest.mark.slow
def test_a_classifier_in_two_processes(folder: Path, tmp_path: Path) -> None:
    done(run_in_two_processes(*classifier(folder, tmp_path / "two")))
    same_metrics(folder / "classifier", tmp_path / "two")
    assert read_json(tmp_path / "two/metrics.json")["labels"] == ["mild", "toxic"]


@pytest.mark.slow
def test_a_class_conditional_model_in_two_processes_and_what_it_steers(folder: Path, tmp_path: Path) -> None:
    done(run_script(*gedi(folder, tmp_path / "one")))
    done(run_in_two_processes(*gedi(folder, tmp_path / "two")))
    same_metrics(tmp_path / "one", tmp_path / "two")
    steered = (f"checkpoint={folder}/base", "mixer=gedi", f"mixer.model={tmp_path}/one", "mixer.wanted=mild")
    done(run_script(*evaluate(folder, tmp_path / "gedi.json", *steered, "mixer.unwanted=toxic", "top_p=1.0")))
    assert read_json(tmp_path / "gedi.json")["evaluated"]["mixer"]["kind"] == "GeDi"
    wrong = run_script(*evaluate(folder, tmp_path / "no.json", *steered, "mixer.unwanted=rude"))
    assert wrong.returncode == 2 and "knows the classes mild, toxic, got 'rude'" in wrong.stderr
    assert not (tmp_path / "no.json").exists()


def test_continuations_are_measured_alike_by_one_process_and_by_two(folder: Path, tmp_path: Path) -> None:
    said = done(run_script(*evaluate(folder, tmp_path / "one.json", f"checkpoint={folder}/base")))
    done(run_in_two_processes(*evaluate(folder, tmp_path / "two.json", f"checkpoint={folder}/base")))
    one, two = (read_json(tmp_path / f"{name}.json")["metrics"] for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert all(one[name] == pytest.approx(two[name], rel=1e-4, abs=1e-6) for name in one)
    assert (one["prompts"], one["continuations"]) == (6, 24) and "truth/average_max" in said
    kept = rows(tmp_path / "one.samples.jsonl")
    assert len(kept) == 24 and kept[0].keys() >= {"id", "text", "scores", "perplexity"}
    outputs = (f"checkpoint={folder}/base", f"data={folder}/world/test.jsonl", f"output={tmp_path}/outputs.jsonl")
    done(run_script("sample_outputs", *outputs, "samples=3", "mixer=word_list", "mixer.words=[goat,log]"))
    done(run_script(*evaluate(folder, tmp_path / "file.json", f"outputs={tmp_path}/outputs.jsonl", *OF_FILE)))
    assert read_json(tmp_path / "file.json")["metrics"]["continuations"] == 18


def test_best_of_n_keeps_the_lowest_score(folder: Path, tmp_path: Path) -> None:
    chosen = ("best_of=3", "chosen_by=reward", f"checkpoint={folder}/base", "protocol=literature", "samples=2")
    done(run_script(*evaluate(folder, tmp_path / "best.json", *chosen)))
    done(run_script(*evaluate(folder, tmp_path / "all.json", f"checkpoint={folder}/base", "samples=6")))
    best, drawn = (rows(tmp_path / f"{name}.samples.jsonl") for name in ("best", "all"))
    assert len(best) == 12 and len(drawn) == 36
    for number, row in enumerate(best):
        block = [one["scores"]["reward"] for one in drawn[3 * number : 3 * number + 3]]
        assert row["scores"]["reward"] == pytest.approx(min(block), abs=1e-6)


def test_ppo_with_sampled_validations_and_the_truth_beside(folder: Path, tmp_path: Path) -> None:
    done(
        run_script(
            "train_ppo",
            "experiment=detox/tone_world",
            f"output_dir={tmp_path}/run",
            f"data={folder}/world/train.jsonl",
            f"validation_data={folder}/world/dev.jsonl",
            f"policy.path={folder}/base",
            f"value.path={folder}/base",
            f"reward.components.toxicity.scorer.path={folder}/classifier",
            "rollout.prompts_per_step=2",
            "rollout.max_new_tokens=8",
            "total_steps=2",
            "validate_every=1",
        )
    )
    validations = [json.loads(line) for line in (tmp_path / "run/eval.jsonl").open()]
    assert [row["step"] for row in validations] == [0, 1, 2]
    assert all({"truth/worst", "truth/nll", "reference_perplexity"} <= row.keys() for row in validations)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("outputs=absent.jsonl",), "absent.jsonl"),
        ((), "name what to evaluate"),
        (("checkpoint=FOLDER/base", "best_of=4"), "best_of and chosen_by belong together"),
        (("outputs=FOLDER/world/test.jsonl", "samples=3"), "are for checkpoint=RUN"),
        (("checkpoint=FOLDER/base", "protocol=other"), "protocol: expected one of thesis, literature"),
        (("checkpoint=FOLDER/base", "temperature=0"), "temperature"),
        (("checkpoint=FOLDER/base", "+mixer.alpha=1"), "mixer: no _target_, so nothing says which LogitsMixer it is"),
    ],
)
def test_bad_evaluations_are_one_line(folder: Path, tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    given = [word.replace("FOLDER", str(folder)) for word in words]
    result = run_script(*evaluate(folder, tmp_path / "none.json", *given))
    assert result.returncode in (1, 2) and problem in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "none.json").exists()
