"""Query rewriting: what is read and imitated, what a rewrite earns, how a rewriter is chosen, and whole runs."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conqrr_toy import labels, make_files, questions
from hypothesis import given, settings
from hypothesis import strategies as st
from ppo_toy import run_together
from rl_toy import tokenizer

from finegrained_rlhf.conqrr.data import PassageLabel, RewriteData, RewriteExample
from finegrained_rlhf.conqrr.inputs import RewriteTemplate, imitations, labelled_share, rewrite_prompts, stored_template
from finegrained_rlhf.conqrr.rewards import PoolReward, ShuffledReward, pool_ids, pool_ranks
from finegrained_rlhf.conqrr.rewriter import QueryRewriter
from finegrained_rlhf.conqrr.rewriting import RewritingConfig
from finegrained_rlhf.conqrr.training import RewriteValidation, TrainConqrr, fixed_batches
from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.metrics.functions import rouge1_scores
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.models.tiny import TinyGPT2Config
from finegrained_rlhf.models.tiny_networks import build_gpt2, build_tokenizer, causal_tokenizer
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import AdafactorConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.self_critical.config import SelfCriticalConfig


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("conqrr"))


# Inputs --------------------------------------------------------------------------------------------------------------


def long_dialogue(turns: int) -> RewriteExample:
    history = tuple(f"{word} dog ran far" for word in ["red", "blue", "green"] * turns)[: 2 * turns]
    return RewriteExample("x", "d", turns + 1, history, "who saw the cat?")


@pytest.mark.parametrize("turns", [1, 2, 30])
def test_the_newest_turn_survives_truncation(turns: int) -> None:
    example = long_dialogue(turns)
    (prompt,) = rewrite_prompts([example], tokenizer(), 24)
    newest = tokenizer()(example.question, add_special_tokens=False)["input_ids"]
    assert prompt.input_ids[: len(newest)] == tuple(newest)
    assert len(prompt.input_ids) <= 24 and prompt.input_ids[-1] == tokenizer().eos_token_id
    whole = tokenizer()(example.context)["input_ids"]
    assert prompt.input_ids[:-1] == tuple(whole[: len(prompt.input_ids) - 1])  # what is lost is the oldest


def test_the_input_is_newest_first() -> None:
    example = RewriteExample("x", "d", 3, ("q1", "a1", "q2", ""), "q3")
    assert example.context == "q3 [SEP] q2 [SEP] a1 [SEP] q1"
    (prompt,) = rewrite_prompts([example], tokenizer())
    assert prompt.text == example.context and prompt.metadata["references"] == ()


def test_control_tokens_in_a_turn_are_words() -> None:
    """Neither the end of sequence, nor a pad, nor the separator can be typed; other text gives the same ids."""
    known = tokenizer()
    history = ("stop </s> now", "a <pad> b [SEP] c", "<<pad>pad>", "fine")
    (prompt,) = rewrite_prompts([RewriteExample("x", "d", 3, history, "who </s>?")], known)
    assert not set(prompt.input_ids[:-1]) & {known.eos_token_id, known.pad_token_id}
    assert prompt.input_ids[-1] == known.eos_token_id and prompt.text.count("[SEP]") == len(history)
    plain = long_dialogue(2)
    (prompt,) = rewrite_prompts([plain], known)
    assert prompt.text == plain.context and list(prompt.input_ids) == known(plain.context)["input_ids"]


# Templates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["seq2seq", "causal"])
def test_the_cue_stands_at_the_end_whatever_is_cut(family: str) -> None:
    known = tokenizer() if family == "seq2seq" else causal_tokenizer(tokenizer(), 256)
    template = RewriteTemplate("dialogue: {dialogue} so:")
    ends = [known.eos_token_id] if family == "seq2seq" else []
    cue = known(" so:", add_special_tokens=False)["input_ids"]
    for turns in (1, 30):
        (prompt,) = rewrite_prompts([long_dialogue(turns)], known, 40, template)
        ids = list(prompt.input_ids)
        assert ids[-len(cue) - len(ends) :] == [*cue, *ends] and len(ids) <= 40
        body = known("dialogue: " + long_dialogue(turns).context, add_special_tokens=False)["input_ids"]
        assert ids[: -len(cue) - len(ends)] == body[: 40 - len(cue) - len(ends)]
    assert prompt.text.startswith("dialogue: who saw the cat? [SEP] ") and prompt.text.endswith(" so:")
    with pytest.raises(ConfigError, match="max_input_tokens: expected more than the"):
        rewrite_prompts([long_dialogue(1)], known, 3, template)


@pytest.mark.parametrize("text", ["", "rewrite:", "{dialogue} {dialogue}", "{context}"])
def test_broken_templates(text: str, files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="template: expected a text with {dialogue} once"):
        RewritingConfig(template=text)
    with pytest.raises(ConfigError, match="template: expected a text with {dialogue} once"):
        job(files, tmp_path, 0.0, template=text)


def test_a_decoder_only_rewriter_gets_a_cue_and_its_checkpoints_remember_it(files: Path, tmp_path: Path) -> None:
    """Training, validation and rewriting read one input; a checkpoint that says nothing reads the dialogue alone."""
    texts = [q.context + " " + (q.rewrite or "") + "\nrewrite:" for q in questions()]
    causal = causal_tokenizer(build_tokenizer(texts), 256)
    policy = CausalPolicy(build_gpt2(causal, TinyGPT2Config(16, 1, 2, 256)), causal)
    save_policy(policy, tmp_path / "gpt2")
    assert QueryRewriter(open_policy(tmp_path / "gpt2"), Processes()).template.text == "{dialogue}"
    task = job(files, tmp_path / "run", 0.0, policy=PolicyConfig(str(tmp_path / "gpt2")), total_steps=2)
    trainer = task.build(Processes(task.processes), RunDirectory(tmp_path / "other"))
    assert all(item.prompt.text.endswith("\nrewrite:") for item in trainer.data)
    assert all(prompt.text.endswith("\nrewrite:") for prompt in trainer.validation.prompts)
    task.run()
    for place in ("policy", "checkpoints/step_2/policy"):
        rewriter = QueryRewriter(open_policy(tmp_path / "run" / place), Processes())
        assert rewriter.template.text == "{dialogue}\nrewrite:"
        (prompt,) = rewriter._prompts(questions()[:1])
        cue = causal("\nrewrite:", add_special_tokens=False)["input_ids"]
        assert list(prompt.input_ids[-len(cue) :]) == cue
        assert prompt.input_ids in {item.prompt.input_ids for item in trainer.data} | {
            p.input_ids for p in trainer.validation.prompts
        }
    again = job(files, tmp_path / "on", 0.0, policy=PolicyConfig(str(tmp_path / "run")), template="{dialogue} =")
    told = again.build(Processes(again.processes), RunDirectory(tmp_path / "on"))
    assert told.data[0].prompt.text.endswith(" =")
    bare = QueryRewriter(open_policy(tmp_path / "run"), Processes(), RewritingConfig(template="{dialogue}"))
    assert bare._prompts(questions()[:1])[0].text == questions()[0].context


def test_an_encoder_decoder_reads_the_dialogue_alone(files: Path, tmp_path: Path) -> None:
    task = job(files, tmp_path / "run", 0.0)
    trainer = task.build(Processes(task.processes), RunDirectory(tmp_path / "run"))
    contexts = {q.id: q.context for q in questions()}
    assert all(item.prompt.text == contexts[item.prompt.id] for item in trainer.data)
    assert stored_template(trainer.policy) == RewriteTemplate("{dialogue}")
    trainer.policy.model.config.rewrite_template = "no place"
    with pytest.raises(ModelError, match="config.json of the policy, rewrite_template: template: expected"):
        stored_template(trainer.policy)


def test_a_tokenizer_that_cuts_the_newest_turn_is_refused() -> None:
    class Left:
        truncation_side = "left"

    with pytest.raises(ConfigError, match="truncation_side"):
        rewrite_prompts([long_dialogue(1)], Left())


def many(count: int) -> list[RewriteExample]:
    return [RewriteExample(f"q{i}", f"d{i}", 1, (), "why?", "why so?" if i % 2 else None) for i in range(count)]


def test_shares_of_the_labels_are_nested_and_follow_the_seed() -> None:
    examples = many(400)
    chosen = {share: labelled_share(examples, share, 3) for share in (0.0, 0.01, 0.1, 0.5, 1.0)}
    assert [len(names) for names in chosen.values()] == [0, 2, 20, 100, 200]
    assert chosen[0.01] < chosen[0.1] < chosen[0.5] < chosen[1.0] == {f"q{i}" for i in range(1, 400, 2)}
    assert chosen[0.1] == labelled_share(examples[::-1], 0.1, 3) != labelled_share(examples, 0.1, 4)
    assert len(labelled_share(many(20), 0.01, 0)) == 1
    with pytest.raises(ConfigError, match="label_share"):
        labelled_share(examples, 1.5, 0)


def test_imitations_end_and_are_cut(files: Path) -> None:
    policy = open_policy(files / "t5")
    examples = questions()
    found = imitations(
        examples, policy, labelled={"d0_2", "d1_2"}, rewarded={"d0_1"}, max_input_tokens=384, max_rewrite_tokens=6
    )
    assert [e.prompt.id for e in found] == [q.id for q in examples]
    assert {e.prompt.id for e in found if e.answer_ids} == {"d0_2", "d1_2"}
    assert [e.prompt.id for e in found if e.rewarded] == ["d0_1"]
    whole = policy.tokenizer(examples[1].rewrite)["input_ids"]
    assert found[1].answer_ids == (*whole[:5], policy.eos_ids[0])


# Reward --------------------------------------------------------------------------------------------------------------


class Overlap:
    """A retriever: how many words a query shares with a passage's id; counts its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[str], list[str]]] = []

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> Any:
        self.calls.append((list(queries), list(ids)))
        return np.array(
            [[len(set(q.split()) & set(i.split("-"))) for i in ids] for q in queries], dtype=np.float32
        ).reshape(len(queries), len(ids))


LABELS = {
    "a": PassageLabel("a", "red-car", "red-boat"),
    "b": PassageLabel("b", "blue-car", "red-car"),
    "c": PassageLabel("c", "blue-boat", "far"),
}
PROMPTS = {name: Prompt(name, name, (1,)) for name in LABELS}


def test_only_the_positive_alone_on_top_earns() -> None:
    scores = np.array([[2, 1, 0], [2, 2, 0], [1, 2, 0], [np.nan, 0, 0], [0, 0, 0]], dtype=np.float32)
    assert pool_ranks(scores, [0, 0, 0, 0, 0]).tolist() == [1, 2, 2, 3, 3]
    assert pool_ranks(scores[:2], [1, 1]).tolist() == [2, 2]
    assert pool_ranks(np.array([[0.0]], dtype=np.float32), [0]).tolist() == [1]


def test_rewards_by_hand_in_one_call() -> None:
    scorer = Overlap()
    reward = PoolReward(scorer, LABELS)
    step = [PROMPTS[name] for name in "abc"]
    asked = [PROMPTS[name] for name in "aaabbc"]
    texts = ["the red car", "the car", "red boat", "blue car", "blue", "blue boat"]
    assert reward.score(step, asked, texts) == [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    ((queries, ids),) = scorer.calls
    assert ids == ["red-car", "red-boat", "blue-car", "blue-boat", "far"] and len(ids) == len(set(ids))
    reward.score(step, [PROMPTS["a"]] * 3, ["red"] * 3)
    assert scorer.calls[1][0] == ["red"]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_order_and_repetition_in_the_pool_change_no_reward(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.choices("abc", k=6)
    texts = [" ".join(rng.choices(["red", "blue", "car", "boat", "far"], k=2)) for _ in names]
    asked = [PROMPTS[name] for name in names]
    reward = PoolReward(Overlap(), LABELS)
    expected = reward.score([PROMPTS[name] for name in "abc"], asked, texts)
    shuffled = [PROMPTS[name] for name in [*"abc", *names]]
    rng.shuffle(shuffled)
    assert reward.score(shuffled, asked, texts) == expected
    order = rng.sample(range(6), 6)
    again = reward.score(shuffled, [asked[i] for i in order], [texts[i] for i in order])
    assert again == [expected[i] for i in order]


def test_a_pool_holds_every_passage_once() -> None:
    assert pool_ids([LABELS["a"], LABELS["b"], LABELS["a"]]) == ["red-car", "red-boat", "blue-car"]


def test_shuffled_rewards_are_the_same_ones_dealt_out_anew() -> None:
    step = [PROMPTS[name] for name in "abc"]
    asked = [PROMPTS["a"]] * 20
    texts = ["red car"] * 10 + ["far"] * 10
    plain = PoolReward(Overlap(), LABELS).score(step, asked, texts)
    control = ShuffledReward(PoolReward(Overlap(), LABELS), 1).score(step, asked, texts)
    assert sorted(control) == sorted(plain) and control != plain
    assert control == ShuffledReward(PoolReward(Overlap(), LABELS), 1).score(step, asked, texts)


def test_a_question_without_label_is_named() -> None:
    with pytest.raises(DataError, match="record z, field positive"):
        PoolReward(Overlap(), LABELS).score([Prompt("z", "", (1,))], [], [])


# Validation ----------------------------------------------------------------------------------------------------------


def test_rouge1_by_hand() -> None:
    """Two of three words right, two of four found: F1 = 2 · (2/3 · 1/2) / (2/3 + 1/2)."""
    assert rouge1_scores(["The RED car", ""], ["red boat the far", "red"]) == pytest.approx([4 / 7, 0.0])
    with pytest.raises(ValueError, match="a reference a prediction"):
        rouge1_scores(["a"], [])


def test_fixed_batches_hold_everything_once_in_even_sizes() -> None:
    prompts = [Prompt(f"d{i // 4}_{i % 4}", "", (1,)) for i in range(21)]
    batches = fixed_batches(prompts, 8)
    assert sorted(i for batch in batches for i in batch) == list(range(21)) and [len(b) for b in batches] == [7, 7, 7]
    names = [{prompts[i].id for i in batch} for batch in batches]
    again = fixed_batches(prompts[::-1], 8)
    assert [{prompts[::-1][i].id for i in batch} for batch in again] == names
    assert fixed_batches([], 8) == []


def validation(select_by: Any = "accuracy") -> tuple[RewriteValidation, list[str]]:
    """Questions a, b and z have a rewrite, a, b and c a label; and a rewrite of each."""
    references: dict[str, tuple[str, ...]] = {"c": ()}
    prompts = [Prompt(name, name, (1,), {"references": references.get(name, ("the red car",))}) for name in "abcz"]
    texts = ["red car", "blue", "boat", "the car"]
    return RewriteValidation(prompts, PoolReward(Overlap(), LABELS), 2, select_by), texts


def test_validation_measures_what_can_be_measured() -> None:
    """ROUGE-1 over a, b, z: 0.8, 0, 0.8; accuracy over a, b, c in two fixed batches."""
    measured, texts = validation()
    result = measured.measure(texts, Processes())
    assert result["rouge1"] == pytest.approx(1.6 / 3)
    batches = fixed_batches([PROMPTS[name] for name in "abc"], 2)
    right = 0.0
    for batch in batches:
        inside = [list("abc")[i] for i in batch]
        pool = {p for name in inside for p in (LABELS[name].positive, LABELS[name].negative)}
        for name in inside:
            words = set(texts["abcz".index(name)].split())
            score = {p: len(words & set(p.split("-"))) for p in pool}
            mine = LABELS[name].positive
            right += all(score[mine] > score[p] for p in pool if p != mine)
    assert result["accuracy"] == result["score"] == pytest.approx(right / 3) and right > 0
    assert validation("rouge1")[0].measure(texts, Processes())["score"] == result["rouge1"]


def test_processes_measure_what_one_does() -> None:
    measured, texts = validation()
    expected = measured.measure(texts, Processes())
    for found in run_together(3, lambda processes: validation()[0].measure(texts, processes)):
        assert found == pytest.approx(expected)


def test_validation_that_cannot_select_is_refused() -> None:
    plain = [Prompt("a", "", (1,), {"references": ()})]
    with pytest.raises(ConfigError, match="rouge1"):
        RewriteValidation(plain, None, 4, "rouge1")
    with pytest.raises(ConfigError, match="accuracy"):
        RewriteValidation(plain, None, 4, "accuracy")


# Runs ----------------------------------------------------------------------------------------------------------------


def job(files: Path, output: Path, alpha: float, **changes: Any) -> TrainConqrr:
    given: dict[str, Any] = {
        "output_dir": str(output),
        "data": str(files / "questions.jsonl"),
        "policy": PolicyConfig(str(files / "t5")),
        "optimizer": AdafactorConfig(lr=1e-2),
        "training": SelfCriticalConfig(alpha, batch_size=4, samples=3, max_new_tokens=12),
        "total_steps": 4,
        "labels": str(files / "labels.jsonl"),
        "index": str(files / "index"),
        "validation_data": str(files / "questions.jsonl"),
        "validation_pool": 4,
        "validate_every": 2,
        "checkpoint_every": 2,
        "samples_every": 2,
        "processes": ProcessConfig(threads=1),
    }
    return TrainConqrr(**{**given, **changes})


@pytest.mark.parametrize(("alpha", "score"), [(0.0, "rouge1"), (0.9, "accuracy"), (1.0, "accuracy")])
def test_a_run_selects_and_reports(files: Path, tmp_path: Path, alpha: float, score: str) -> None:
    result = job(files, tmp_path, alpha, label_share=0.5).run()
    run = RunDirectory(tmp_path)
    validations = [json.loads(line) for line in run.eval.read_text().splitlines()]
    assert [row["step"] for row in validations] == [0, 2, 4]
    assert all(row["score"] == row[score] and {"rouge1", "accuracy"} <= row.keys() for row in validations)
    assert result.best_score == max(row["score"] for row in validations)
    report = json.loads(run.results.read_text())
    assert report[score] == result.best_score and report["validation_examples"] == 12
    assert report["imitated"] == (0 if alpha == 1 else 6)
    assert report["rewarded"] == (0 if alpha == 0 else len(labels()))
    taught, judged = labelled_share(questions(), 0.5, 0), {label.example for label in labels()}
    assert report["train_examples"] == {0.0: 6, 0.9: len(taught | judged), 1.0: 10}[alpha]
    assert ("time/rollout_s" in run.metrics.read_text()) == (alpha > 0)


def test_a_stopped_run_ends_like_an_uninterrupted_one(files: Path, tmp_path: Path) -> None:
    # constant, because the schedule of the shorter run ends earlier
    optimizer = AdafactorConfig(lr=1e-2, schedule="constant")
    job(files, tmp_path / "a", 0.9, optimizer=optimizer).run()
    job(files, tmp_path / "b", 0.9, optimizer=optimizer, total_steps=2).run()
    job(files, tmp_path / "b", 0.9, optimizer=optimizer).run()
    one, other = (
        [{k: v for k, v in json.loads(line).items() if "time/" not in k} for line in path.read_text().splitlines()]
        for path in (RunDirectory(tmp_path / name).metrics for name in "ab")
    )
    assert one == other and len(one) == 4
    first, second = ((tmp_path / name / "policy/model.safetensors").read_bytes() for name in "ab")
    assert first == second


def test_questions_are_held_out_by_their_ids(files: Path, tmp_path: Path) -> None:
    task = job(files, tmp_path, 0.0, validation_data=None, validation_share=0.25)
    trainer = task.build(Processes(), RunDirectory(tmp_path))
    kept, held = {e.prompt.id for e in trainer.data}, {p.id for p in trainer.validation.prompts}
    assert len(held) == 3 and len(kept) == 9 and not kept & held
    other = dataclasses.replace(task, seed=5).build(Processes(), RunDirectory(tmp_path))
    assert {p.id for p in other.validation.prompts} == held


def test_without_validation_the_last_policy_is_exported(files: Path, tmp_path: Path) -> None:
    result = job(files, tmp_path, 0.0, validation_data=None, labels=None, index=None).run()
    assert result.best_step == 4 and result.best_score is None
    assert "score" not in RunDirectory(tmp_path).metrics.read_text()


def test_data_of_another_format(files: Path, tmp_path: Path) -> None:
    data = RewriteData(str(files / "questions.jsonl"), "jsonl")
    assert len(job(files, tmp_path, 0.0, data=data).build(Processes(), RunDirectory(tmp_path)).data) == 12


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"labels": None, "index": None}, "needs labels"),
        ({"index": None}, "both or neither"),
        ({"label_share": -0.1}, "label_share"),
        ({"select_by": "loss"}, "select_by"),
        ({"validation_pool": 0}, "validation_pool"),
        ({"validation_share": 0.1}, "validation_share"),
        ({"total_steps": 0}, "total_steps"),
    ],
)
def test_contradictions_are_refused(files: Path, tmp_path: Path, bad: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        job(files, tmp_path, 0.9, **bad)


def test_nothing_to_learn_from_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="alpha = 0"):
        job(files, tmp_path, 0.0, label_share=0.0).build(Processes(), RunDirectory(tmp_path))
    with pytest.raises(ConfigError, match="rouge1"):
        (files / "bare.jsonl").write_text(
            '{"id": "d0_1", "dialogue": "d0", "turn": 1, "history": [], "question": "why?"}\n'
        )
        bare = str(files / "bare.jsonl")
        job(files, tmp_path, 0.0, validation_data=bare).build(Processes(), RunDirectory(tmp_path))
