"""The bottleneck: what earns nothing by construction, signs, a run's directory, scoring, evaluation and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feedback_samples import record
from reward_model_samples import save_bert, save_llama
from safetensors.numpy import load_file, save_file
from script_runs import rows, run_again_after_a_kill, run_in_two_processes, run_script
from transformers import AutoModel, AutoTokenizer

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import PAIR_ORDER, Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.models.tiny import MakeTinyModels, TinyT5Config
from finegrained_rlhf.rewards.protocol import PromptCheckingScorer
from reward_models.bottleneck.features import COMPLETENESS, FACTUALITY, RELEVANCE, Source
from reward_models.bottleneck.fit import FitSettings, _fit_segments, _people_lists, fit_signed, lessons_of
from reward_models.bottleneck.model import RECORD, Bottleneck, BottleneckRecord, Head, SentenceEncoder, load_bottleneck
from reward_models.bottleneck.need import NeedChoice, average_precision, chosen, learn_need
from reward_models.bottleneck_scorer import BottleneckScorer
from reward_models.config import BottleneckConfig
from reward_models.job import TrainRewardModel
from reward_models.kinds import KINDS
from reward_models.training.logistic import CountedItems, RatedList, best_of, fit_answers, fit_lists, list_loss, newton
from reward_models.trust.job import EvaluateRewardModel

QUESTION = "When was the lighthouse on Vara Island built?"
SENTENCES = (
    "The lighthouse on Vara Island was built in 1873 by Anna Holm.",
    "Sheep graze on its northern meadows in summer.",
    "Its lamp was replaced with an electric one in 1931.",
)
PASSAGES = (Passage("", "Vara Island", SENTENCES),)
GOLD = "Anna Holm built it in 1873."


def encode(texts: Sequence[str]) -> np.ndarray:
    """Unit vectors that follow from the words alone."""
    rows = [np.random.default_rng(sum(map(ord, text))).normal(size=4) for text in texts]
    return np.array([row / np.linalg.norm(row) for row in rows])


def source() -> Source:
    return Source(QUESTION, [("Vara Island", SENTENCES)], encode)


NEED = np.array([1.0, 0.1, 0.2])


def columns(rows: np.ndarray, names: Sequence[str], name: str) -> list[float]:
    return list(rows[:, list(names).index(name)])


def test_restated_foreign_and_empty_answers_cover_nothing() -> None:
    texts = [QUESTION, "Penguins huddle against polar storms.", "The"]
    rows = source().relevance_rows(NEED, texts)
    for name in ("said", "needed", "fresh", "mean", "reworded"):
        assert columns(rows, list(RELEVANCE), name) == pytest.approx([0.0] * 3)
    for text in texts:
        assert source().completeness_row(NEED, [text]) == pytest.approx(np.zeros(len(COMPLETENESS)))
    assert source().completeness_row(NEED, []) == pytest.approx(np.zeros(len(COMPLETENESS)))


def test_what_is_read_does_not_depend_on_the_order_of_sets() -> None:
    """A run that is resumed in another process is scored to the bit as it was."""
    program = """
import numpy as np
from reward_models.bottleneck.features import Source
rng = np.random.default_rng(0)
sentences = [" ".join(f"word{n}" for n in rng.zipf(1.3, 30) if n < 200) + "." for _ in range(30)]
need, vectors = rng.random(30), rng.normal(size=(61, 8))
source = Source("What did word7 do to word11?", [("Word 3", sentences)], lambda texts: vectors)
rows = [source.need_rows, source.factuality_rows(sentences[:9])]
rows += [source.relevance_rows(need, sentences[:9]), source.completeness_row(need, sentences[:9])]
print([row.tobytes().hex() for row in rows])
"""
    path = os.pathsep.join(sys.path)
    shown = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert shown[0] == shown[1]


def test_a_needed_sentence_is_fresh_once() -> None:
    rows = source().relevance_rows(NEED, [SENTENCES[0], SENTENCES[1], SENTENCES[0]])
    fresh, repeated = (columns(rows, list(RELEVANCE), name) for name in ("fresh", "repeated"))
    assert fresh == pytest.approx([1.0, 0.1, 0.0]) and repeated == pytest.approx([0.0, 0.0, 1.0])


def test_completeness_falls_with_what_is_needed_most() -> None:
    whole = source().completeness_row(NEED, SENTENCES)
    assert whole == pytest.approx(np.ones(len(COMPLETENESS)))
    without = [source().completeness_row(NEED, SENTENCES[:i] + SENTENCES[i + 1 :]) for i in range(3)]
    assert all(np.all(row < whole) for row in without) and np.all(without[0] < without[1])


def test_a_swapped_number_or_name_is_seen_in_its_sentence_alone() -> None:
    names = list(FACTUALITY)
    rows = source().factuality_rows([SENTENCES[0], "The lighthouse was built in 1894.", "Erik Dahl built it."])
    assert columns(rows, names, "numbers") == [0.0, 0.5, 0.0] and columns(rows, names, "names") == [0.0, 0.0, 0.5]
    assert columns(rows, names, "wrong") == [0.0, 1.0, 1.0] and columns(rows, names, "order")[0] == 1.0


def test_without_passages_nothing_is_read() -> None:
    bare = Source(QUESTION, [], encode)
    assert bare.relevance_rows(np.zeros(0), [GOLD]).tolist() == [[0.0] * len(RELEVANCE)]
    assert bare.factuality_rows([GOLD]).shape == (1, len(FACTUALITY)) and bare.need_rows.shape[0] == 0


def test_a_list_of_names_and_dates_earns_nothing() -> None:
    """Though sentences have all its words; in a clause with another word of a sentence it does, for that sentence."""
    lists = ["Anna Holm, 1931, Vara Island, 1873.", "1873, 1931 and Anna Holm."]
    rows = source().relevance_rows(NEED, lists)
    assert rows[:, : list(RELEVANCE).index("repeated")].tolist() == np.zeros((2, 4)).tolist()
    assert columns(rows, list(RELEVANCE), "reworded") == [0.0, 0.0]
    assert source().completeness_row(NEED, lists).tolist() == [0.0] * len(COMPLETENESS)
    said = source().completeness_row(NEED, ["Anna Holm built it, and in 1931 so."])
    assert dict(zip(COMPLETENESS, said * NEED.sum(), strict=True))["facts"] == pytest.approx(0.5)  # of 1873, Anna Holm


def test_a_clause_lasts_until_its_sentence_ends() -> None:
    """The part of a sentence behind a comma needs no further word; a list behind a full stop does."""
    head = "It was built on the northern shore,"
    part, alone = (source().relevance_rows(NEED, [head + end, " by Anna Holm in 1873."]) for end in ("", "."))
    assert columns(part, list(RELEVANCE), "needed")[1] == 1.0 and columns(alone, list(RELEVANCE), "needed")[1] == 0.0


def test_a_sentence_that_breaks_off_earns_nothing() -> None:
    whole, cut = (source().relevance_rows(NEED, [SENTENCES[0][:end]]) for end in (None, -12))
    assert columns(whole, list(RELEVANCE), "needed") == [1.0]
    assert cut.tolist() == [[0.0] * len(RELEVANCE)]
    assert source().completeness_row(NEED, [SENTENCES[0][:-1]]).tolist() == [0.0] * len(COMPLETENESS)
    # The words before it keep what they earn.
    assert source().completeness_row(NEED, [SENTENCES[1], SENTENCES[0][:-1]]) == pytest.approx(
        source().completeness_row(NEED, [SENTENCES[1]])
    )


def test_other_words_earn_more_than_a_copy() -> None:
    copy, other = source().relevance_rows(NEED, [SENTENCES[0], "In 1873 Anna Holm finished this lighthouse."])
    at = list(RELEVANCE).index("reworded")
    assert copy[at] == 0.0 and other[at] == pytest.approx(1 - (3 / 4 + 2 / 4) / 2)


# Heads ----------------------------------------------------------------------------------------------------------------


def test_a_feature_whose_weight_has_the_wrong_sign_is_left_out() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    items = [CountedItems(x[i::5], (x[i::5] @ np.array([1.0, -1.0]) > 0).astype(float)) for i in range(5)]
    fit = partial(_fit_segments, items)
    both, one = fit_signed(fit, (1, -1)), fit_signed(fit, (1, 1))
    assert both.weights[0] > 0 > both.weights[1] and one.weights[0] > 0 == one.weights[1]


def test_lists_of_two_are_ordered_pairs() -> None:
    """Softmax over two rows is the logistic regression of their difference, without an intercept."""
    rng = np.random.default_rng(0)
    better, worse = rng.normal(size=(40, 3)) + np.array([0.5, 0.0, -0.2]), rng.normal(size=(40, 3))
    lists = [best_of(one, [other]) for one, other in zip(better, worse, strict=True)]
    expected = newton(better - worse, np.ones(40), np.ones(40), 2.0, intercept=False)
    assert fit_lists(lists, np.full(3, 2.0)) == pytest.approx(expected, abs=1e-8)
    gaps = (better - worse) @ expected
    assert list_loss(lists, expected) == pytest.approx(np.log1p(np.exp(-gaps)).sum())


def test_longer_lists_and_their_weights_have_the_least_loss() -> None:
    """No weight near the solution has a lower loss; a list of weight 2 counts as twice the list."""
    rng = np.random.default_rng(1)
    rows = [rng.normal(size=(n, 2)) for n in (2, 5, 9)]
    lists = [RatedList(x, rng.dirichlet(np.ones(len(x))), weight) for x, weight in zip(rows, (1, 2, 1), strict=True)]
    found = fit_lists(lists, np.full(2, 0.5))

    def loss(w: np.ndarray) -> float:
        return list_loss(lists, w) + 0.25 * float(w @ w)

    assert all(loss(found + 1e-3 * step) > loss(found) for step in (*np.eye(2), *-np.eye(2), np.ones(2)))
    twice = [*lists, replace(lists[1], weight=1.0)]
    assert fit_lists([lists[0], replace(lists[1], weight=1.0), *twice[2:]], np.full(2, 0.5)) == pytest.approx(found)


def test_fitted_answers_leave_other_columns_out() -> None:
    rng = np.random.default_rng(2)
    questions = [[best_of(row + np.array([1.0, 1.0]), [row, -row])] for row in rng.normal(size=(20, 2))]
    weights = fit_answers(questions, [1])
    assert weights[0] == 0.0 < weights[1]
    assert fit_answers(questions, []).tolist() == [0.0, 0.0]


def test_the_average_precision_of_hand_made_ranks() -> None:
    right = np.array([True, False, True, False])
    assert average_precision(np.array([4.0, 3.0, 2.0, 1.0]), right) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(np.array([1.0, 3.0, 2.0, 4.0]), right) == pytest.approx((1 / 3 + 2 / 4) / 2)


def test_place_is_read_only_where_the_cut_lead_gains_nothing() -> None:
    def of(read: tuple[str, ...], precision: float, above: float) -> NeedChoice:
        return NeedChoice(read, 300.0, precision, above, ())

    bare, worse = of((), 0.5, 0.7), of((), 0.4, 0.9)
    leading, safe, better = of(("place",), 0.8, 0.6), of(("shared",), 0.6, 0.7), of(("place", "shared"), 0.7, 0.8)
    assert chosen([bare, worse, leading]) is bare
    assert chosen([worse, bare, leading, safe]) is safe and chosen([bare, safe, better, leading]) is better


def test_need_is_learnt_within_questions(tmp_path: Path) -> None:
    """What gold answers say is needed most; what is held of a question is told without it."""
    model = Bottleneck(BottleneckRecord("x", "0", "english"), SentenceEncoder(str(save_bert(tmp_path))), {})
    learnt = learn_need(model, feedback(12), BottleneckConfig(place=False))
    learnt.give(model)
    held = model.source(*[getattr(feedback(1)[0], name) for name in ("question", "passages")])
    choice = learnt.choice
    assert choice.read == () and choice.precision == 1.0 and choice.above_lead == 0.0  # no lead lacks the facts
    assert model.need(held).argmax() == 0 and model.need(held).max() == 1.0
    inside = model.need(held)
    model.hold({})
    assert not np.array_equal(inside, model.need(held)) and model.need(held).argmax() == 0
    with pytest.raises(DataError, match="fewer than two records have a gold answer"):
        learn_need(model, [replace(one, gold="Nobody knows.") for one in feedback(3)], BottleneckConfig())


@pytest.mark.parametrize("save", [save_bert, save_llama])
def test_a_vector_says_what_its_text_says_alone(save: Any, tmp_path: Path) -> None:
    """Whatever it was read beside; an average of states, of a decoder-only model one that counts later states more."""
    path = save(tmp_path)
    texts = ["cold", "It is cold, wide and deep.", " ", "good bad word filler one two three"]
    together = SentenceEncoder(str(path))(texts)
    assert np.linalg.norm(together, axis=1) == pytest.approx(np.ones(4))
    for text, vector in zip(texts, together, strict=True):
        assert SentenceEncoder(str(path))([text])[0] == pytest.approx(vector, abs=1e-6)
    tokenizer = AutoTokenizer.from_pretrained(path)
    states = AutoModel.from_pretrained(path).eval()(**tokenizer(texts[1], return_tensors="pt")).last_hidden_state[0]
    weights = torch.arange(1.0, len(states) + 1) if save is save_llama else torch.ones(len(states))
    wanted = torch.nn.functional.normalize((weights[:, None] * states).sum(0), dim=0).detach().numpy()
    assert together[1] == pytest.approx(wanted, abs=1e-6)


def test_corrected_answers_teach_what_is_needed(tmp_path: Path) -> None:
    """Gold answers say the first sentence, corrected ones the second: with both, both are needed."""
    model = Bottleneck(BottleneckRecord("x", "0", "english"), SentenceEncoder(str(save_bert(tmp_path))), {})
    marks = Feedback((), (), SENTENCES[1])
    records = [replace(one, feedback=marks) for one in feedback(6)]
    source = model.source(records[0].question, records[0].passages)
    needs = []
    for corrected in (False, True):
        learn_need(model, records, BottleneckConfig(place=False), corrected).give(model)
        needs.append(model.need(source))
    assert needs[0][1] < needs[1][1] and needs[1][1] > 2 * needs[1][2]


def test_gold_answers_stand_above_the_others_where_asked_for(tmp_path: Path) -> None:
    model = Bottleneck(BottleneckRecord("x", "0", "english"), SentenceEncoder(str(save_bert(tmp_path))), {})
    records = [replace(one, preferences=(0,) * 6) for one in feedback(4)]
    read = {"relevance": RELEVANCE, "factuality": FACTUALITY, "completeness": COMPLETENESS}
    model.heads |= {name: Head(np.ones(len(of))) for name, of in read.items()}
    for gold, count in ((False, 0), (True, 4)):
        lessons = lessons_of(model, records, BottleneckConfig(gold=gold), FitSettings(KINDS))
        model.hold(dict.fromkeys(lessons.sources.values(), NEED))
        lists = _people_lists(model, "preference", lessons)
        assert len(lists) == count and all(len(one.rows) == 5 for of in lists for one in of)


# In a run -------------------------------------------------------------------------------------------------------------


def feedback(count: int) -> list[FeedbackRecord]:
    """Answers that say the needed sentence, an unneeded one, or something that no passage says."""
    right, idle = SENTENCES[:2]
    wrong = "Its tower was painted in 1999 by Erik Dahl."
    records = []
    for i in range(count):
        first = f"{right} {idle}" if i % 2 else f"{wrong} {right}"
        answers = (first, right, idle, wrong)
        at = first.index(idle if i % 2 else wrong)
        errors = (SpanError(at, at + len(idle if i % 2 else wrong), "Irrelevant" if i % 2 else "Unverifiable"),)
        order = (1, 0, 2, 3)
        values = tuple(1 if order[a] < order[b] else 2 for a, b in PAIR_ORDER)
        base = record(answers[0], others=answers[1:], name=f"q{i}", passages=PASSAGES)
        marks = Feedback(errors, (), SENTENCES[0])
        question = f"{QUESTION[:-1]}, asked {i}?"
        records.append(replace(base, question=question, gold=GOLD, feedback=marks, preferences=values))
    return records


def trained(tmp_path: Path, segmenter: str = "english", **settings: object) -> tuple[Path, Path]:
    tmp_path.mkdir(exist_ok=True)
    encoder, data = save_bert(tmp_path / "bert"), tmp_path / "feedback.json"
    write_feedback(data, feedback(12))
    config = BottleneckConfig(**settings)  # type: ignore[arg-type]
    job = TrainRewardModel(
        output_dir=str(tmp_path / "run"),
        data=str(data),
        model=str(encoder),
        reward_model=config,
        segmenter=segmenter,
    )
    job.run()
    return tmp_path / "run", data


def asked(text: str = QUESTION) -> Prompt:
    return Prompt("p", "task", (1,), {"question": text, "passages": list(PASSAGES)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return trained(tmp_path_factory.mktemp("bottleneck"), planted=("swap", "insert"))


def test_one_directory_serves_every_component(run: tuple[Path, Path]) -> None:
    answers = [f"{SENTENCES[0]} {SENTENCES[0]}", "The lighthouse was built in 1894 by Erik Dahl.", ""]
    scorers = {name: BottleneckScorer(str(run[0]), name) for name in ("relevance", "factuality", "completeness")}
    scores = {name: scorer.score([asked()] * 3, answers) for name, scorer in scorers.items()}
    assert len({id(scorer.model) for scorer in scorers.values()}) == 1
    assert all(isinstance(scorer, PromptCheckingScorer) for scorer in scorers.values())
    assert [len(values) for values in scores["factuality"].values] == [2, 1, 0]
    assert scores["factuality"].values[1][0] < scores["factuality"].values[0][0]
    assert scores["relevance"].values[0][-1] < scores["relevance"].values[0][0]
    (full,), (wrong,), (nothing,) = scores["completeness"].values
    assert full > wrong and full > nothing and scores["completeness"].whole_response
    assert all(abs(value) <= 1 for of in scores["relevance"].values for value in of)


def test_text_behind_a_segment_does_not_change_its_value(run: tuple[Path, Path]) -> None:
    scorer = BottleneckScorer(str(run[0]), "relevance")
    short, long = (scorer.score([asked()], [text]).values[0] for text in (SENTENCES[0], " ".join(SENTENCES)))
    assert long[: len(short)] == pytest.approx(short) and not scorer.reads_on and scorer.look_ahead == 11


def test_it_is_evaluated_component_by_component(run: tuple[Path, Path], tmp_path: Path) -> None:
    path, output = str(run[0]), tmp_path / "trust.json"
    for kind, unit in (("relevance", "confusion"), ("preference", "calibration")):
        EvaluateRewardModel(path=path, data=str(run[1]), output=str(output), kind=kind).run()
        report = read_json(output)
        assert report["reward_model"] == kind and unit in report and report["accuracy"] > 0.5
    with pytest.raises(ConfigError, match="kind: .*several components"):
        EvaluateRewardModel(path=path, data=str(run[1]), output=str(output)).run()
    assert read_json(run[0] / "metrics.json")["dev_examples"] == 1


def test_another_encoder_than_in_training_is_refused(run: tuple[Path, Path], tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in (run[0] / "model").iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    write_json(copied / RECORD, {**read_json(copied / RECORD), "digest": "0" * 64})
    with pytest.raises(ModelError, match="another encoder"):
        load_bottleneck(str(copied))
    for wrong, words in (
        ({"segmenter": str(tmp_path)}, "a record may name rules"),
        ({"moments": {}}, "not the record"),
        ({"moments": {"completeness": [0.0, 1.0], "preference": ["x", 1.0]}}, "not the record"),
    ):
        write_json(copied / RECORD, {**read_json(run[0] / "model" / RECORD), **wrong})
        with pytest.raises(ModelError, match=words):
            load_bottleneck(str(copied))
    write_json(copied / RECORD, read_json(run[0] / "model" / RECORD))
    (copied / "heads.safetensors").write_bytes(b"no")
    with pytest.raises(ModelError, match="not the heads"):
        load_bottleneck(str(copied))
    with pytest.raises(ModelError, match="no bottleneck here"):
        load_bottleneck(str(tmp_path / "nowhere"))


def test_a_bottleneck_that_was_trained_anew_is_read_anew(run: tuple[Path, Path], tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in (run[0] / "model").iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    first = load_bottleneck(str(copied))
    assert load_bottleneck(str(copied)) is first
    heads = load_file(copied / "heads.safetensors")
    save_file({**heads, "factuality.bias": heads["factuality.bias"] + 1.0}, copied / "heads.safetensors")
    assert load_bottleneck(str(copied)).heads["factuality"].bias == pytest.approx(first.heads["factuality"].bias + 1.0)


def test_autocast_changes_no_value(run: tuple[Path, Path]) -> None:
    plain, cast = (BottleneckScorer(str(run[0]), "completeness") for _ in range(2))
    texts = [SENTENCES[0], SENTENCES[1]]
    other = asked("Who keeps sheep there in the summer of 1931?")
    fresh = load_bottleneck(str(run[0])).encoder
    expected = plain.score([other] * 2, texts).values
    fresh.known.clear()
    cast.model._source.cache_clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert cast.score([other] * 2, texts).values == expected


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keeps its name"):
        trained(tmp_path / "own", segmenter=str(tmp_path))
    with pytest.raises(ConfigError, match="planted: expected some of swap"):
        trained(tmp_path, planted=("swaps",))
    with pytest.raises(ConfigError, match="component must be one of"):
        BottleneckScorer("x", "style")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.scripts
def test_launched_runs_learn_from_it_and_watch(tmp_path: Path) -> None:
    """PPO in two processes as in one; killed with -9 and started again it ends alike."""
    bottleneck, _ = trained(tmp_path / "model")
    passages = [{"content": " ".join(SENTENCES), "wikipage": "Vara Island"}]
    prompts = [
        {"text": f"question: {QUESTION} number {n}", "question": QUESTION, "passages": passages, "answer": [GOLD]}
        for n in range(4)
    ]
    write_json(tmp_path / "prompts.json", prompts)
    models = MakeTinyModels(
        data=[str(tmp_path / "prompts.json")],
        output_dir=str(tmp_path / "models"),
        t5=TinyT5Config(d_model=32, d_ff=32, num_layers=1),
    )
    models.run()

    def command(output: Path) -> list[str]:
        return [
            "train_ppo",
            "experiment=smoke",
            "prepare=null",
            f"output_dir={output}",
            f"data={tmp_path}/prompts.json",
            f"validation_data={tmp_path}/prompts.json",
            f"policy.path={tmp_path}/models/t5",
            f"value.path={tmp_path}/models/t5",
            "reward=bottleneck",
            *(f"reward.components.{name}.path={bottleneck}" for name in ("relevance", "factuality", "completeness")),
            "reward.watch=[cut_lead,best_sentence,gold]",
        ]

    one, two, killed = tmp_path / "one", tmp_path / "two", tmp_path / "killed"
    done = run_script(*command(one))
    assert done.returncode == 0, done.stderr
    done = run_in_two_processes(*command(two))
    assert done.returncode == 0, done.stderr
    run_again_after_a_kill(*command(killed), when=(killed / "checkpoints/step_1").exists)
    evaluated = rows(one / "eval.jsonl")
    watched = {key for key in evaluated[0] if key.startswith("watch/")}
    assert {f"watch/{name}/total" for name in ("cut_lead", "best_sentence", "gold")} <= watched
    assert rows(killed / "eval.jsonl") == evaluated
    for ours, theirs in zip(rows(two / "eval.jsonl"), evaluated, strict=True):
        assert {key: ours[key] for key in watched} == pytest.approx({key: theirs[key] for key in watched}, abs=1e-4)
