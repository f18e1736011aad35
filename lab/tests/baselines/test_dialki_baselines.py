"""Multi-Sentence and BERTQA: what they read, what they choose, what is mapped back; tiny runs of both."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dialki_toy import dialogue, job, passage, save_bert, tiny_dialki, toy_examples
from torch.nn import functional as F

from finegrained_lab.baselines.bertqa import (
    NOT_HERE,
    BertQaModel,
    ChosenWindows,
    TokenScores,
    window_loss,
    windows_to_train,
)
from finegrained_lab.baselines.config import BertQaConfig, WindowConfig
from finegrained_lab.baselines.finder import BertQaFinder, TokenAnswer, answer_texts
from finegrained_lab.baselines.windows import TITLE, WindowedExample, WindowEncoder
from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import passages_to_search, passages_to_train
from finegrained_rlhf.dialki.inputs.examples import InputConfig, InputEncoder
from finegrained_rlhf.dialki.inputs.units import divided
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.dialki.model.model import RECORD, load_dialki, new_model
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialki.model.spans import top_spans
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialki.scores import score_answer
from finegrained_rlhf.dialki.training.job import DialkiBatchConfig
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.dialogue.records import Knowledge, Turn

NEXT_ALONE = LossConfig(0.0, 0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baselines")
    save_bert(path / "bert", layers=1)
    rows = []
    for example in toy_examples():
        answer = Turn("agent", "it is .", example.gold[0])
        rows.append(dialogue_row(example.id, (*example.turns, answer), example.passages, example.unseen))
    write_dialogues(path / "dialogues.jsonl", rows)
    return path


# Multi-Sentence --------------------------------------------------------------------------------------------------


def sectioned() -> DialogueExample:
    """Two passages of 4 and 2 spans; the first one has the sentences 0–1, 2 and 3."""
    passages = (replace(passage(0, 4), sentence_starts=(0, 2, 3)), passage(1, 2))
    history = (Knowledge(0, 1, 2), None, Knowledge(1, 1, 1))
    return dialogue("s", passages, (Knowledge(0, 0, 1), Knowledge(0, 1, 2), Knowledge(1, 0, 1)), history)


def test_a_record_is_divided_into_sentences_and_back() -> None:
    example = sectioned()
    parts, whole = divided(example)
    assert [item.spans for item in parts.passages] == [
        example.passages[0].spans[:2],
        example.passages[0].spans[2:3],
        example.passages[0].spans[3:],
        example.passages[1].spans[:1],
        example.passages[1].spans[1:],
    ]
    assert [item.title for item in parts.passages] == ["door"] * 3 + ["roof"] * 2
    # the first entry lies in one sentence; the second and the third cross two, and their parts are gold of their own
    assert parts.gold == (
        Knowledge(0, 0, 1),
        Knowledge(0, 1, 1),
        Knowledge(1, 0, 0),
        Knowledge(3, 0, 0),
        Knowledge(4, 0, 0),
    )
    assert [turn.knowledge for turn in parts.turns] == [Knowledge(0, 1, 1), None, Knowledge(4, 0, 0)]
    assert whole.back(Knowledge(0, 0, 1)) == Knowledge(0, 0, 1) and whole.back(Knowledge(2, 0, 0)) == Knowledge(0, 3, 3)
    words = [parts.passages[p].run(0, len(parts.passages[p].spans) - 1) for p in range(5)]
    ends = [len(item.spans) - 1 for item in parts.passages]
    assert words == [example.text_of(whole.back(Knowledge(p, 0, end))) for p, end in enumerate(ends)]


def test_no_passage_stays_what_it_is() -> None:
    example = dialogue("n", (passage(0, 2), NO_PASSAGE), (Knowledge(1, 0, 0),), (None,))
    parts, whole = divided(replace(example, no_passage=True))
    assert parts.passages[-1] == NO_PASSAGE and parts.no_passage and parts.gold == (Knowledge(2, 0, 0),)
    assert whole.back(parts.gold[0]) == Knowledge(1, 0, 0)


def test_sentences_are_inputs_and_answers_are_of_the_record(folder: Path) -> None:
    model = tiny_dialki(folder / "bert", units="sentences", contextualize=False, search=SearchConfig(max_passages=1))
    example = sectioned()
    encoder = InputEncoder(model.tokenizer, model.config.inputs, "sentences")
    (item,), report = encoder.encode([example])
    assert (report.passages, len(item.passages)) == (5, 5) and item.record is example
    alone = replace(example, passages=(passage(1, 1),), gold=(), turns=(Turn("user", "tell me"),))
    (other,), _ = InputEncoder(model.tokenizer, model.config.inputs).encode([alone])
    title_and_span = other.passages[0].ids.tolist()
    assert item.input_ids(3).tolist() == [*item.context.tolist(), *title_and_span, item.sep_id]
    chosen = passages_to_search(item, 1)
    assert chosen.passages == (0, 1, 2)  # all sentences of the first passage
    drawn = passages_to_train(item, 2, seed=0, step=1)
    assert drawn.gold is not None and set(drawn.passages) == {drawn.gold.passage, 2}  # 2 alone holds no gold
    (found,) = KnowledgeFinder(model).identify([example])
    assert found.searched == (0,) == found.passages and found.knowledge.passage == 0
    assert found.text == example.text_of(found.knowledge) and found.probability == max(found.probabilities)
    (found,) = KnowledgeFinder(tiny_dialki(folder / "bert", units="sentences", threshold=0.0)).identify([example])
    assert found.searched == (0, 1) and set(found.passages) == {0, 1}
    allowed = [(0, 0, 1), (0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 0, 0), (1, 1, 1)]  # inside one sentence
    assert found.knowledge in [Knowledge(*place) for place in allowed]


def test_multi_sentence_learns(folder: Path, tmp_path: Path) -> None:
    config = DialkiConfig(inputs=InputConfig(160, 80), dropout=0.0, units="sentences", contextualize=False)
    one = job(folder, tmp_path / "run", dialki=config, losses=NEXT_ALONE, total_steps=50, validate_every=25)
    one = replace(one, batches=DialkiBatchConfig(batch_size=3, passages=6, eval_batch_size=4), checkpoint_every=50)
    assert one.run().best_score > 0.6
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["validation"]["all"]["passage_accuracy"] > 0.6 and 0 < metrics["threshold"]["gamma"] < 1
    finder = load_finder(tmp_path / "run")
    assert isinstance(finder, KnowledgeFinder) and finder.model.config.units == "sentences"
    assert load_dialki(tmp_path / "run").config.units == "sentences"


# BERTQA: windows -------------------------------------------------------------------------------------------------


def windows_of(model: BertQaModel, *examples: DialogueExample, training: bool = False) -> list[WindowedExample]:
    return WindowEncoder(model.tokenizer, model.config.inputs, model.windows).encode(examples, training)[0]


def bertqa(
    path: Path, inputs: InputConfig | None = None, windows: WindowConfig | None = None, **changes: Any
) -> BertQaModel:
    torch.manual_seed(1)
    config = BertQaConfig(
        inputs=inputs or InputConfig(60, 20),
        windows=windows or WindowConfig(stride=16, max_answer=12),
        search=SearchConfig(score_by="logits"),
        **changes,
    )
    model = new_model(path, config, BertQaModel)
    with torch.no_grad():
        model.heads.weight.normal_(std=0.4)
    return model


@pytest.mark.parametrize(("limit", "stride"), [(60, 16), (60, 37), (80, 1), (250, 16)])
def test_windows_cover_every_token_in_order(folder: Path, limit: int, stride: int) -> None:
    model = bertqa(folder / "bert", InputConfig(limit, 20), WindowConfig(stride=stride))
    example = dialogue("w", [passage(i, 4) for i in range(3)], (Knowledge(1, 1, 2),))
    (item,) = windows_of(model, example)
    words = [" ".join((p.title, *p.spans)) for p in example.passages]
    plain = model.tokenizer([f" {text}" for text in words], add_special_tokens=False).input_ids
    assert item.document.ids.tolist() == [token for row in plain for token in row]
    seen: Counter[int] = Counter()
    for w, start in enumerate(item.starts):
        ids, size = item.input_ids(w).tolist(), item.size(w)
        assert len(ids) == item.length(w) <= limit and ids[-1] == item.sep_id and size >= 1
        assert ids[: len(item.context)] == item.context.tolist()
        assert ids[len(item.context) : -1] == item.document.ids[start : start + size].tolist()
        seen.update(range(start, start + size))
        assert item.choices(w).sum() == (item.document.spans[start : start + size] != TITLE).sum()
    assert sorted(seen) == list(range(len(item.document.ids)))
    assert [b - a for a, b in zip(item.starts, item.starts[1:], strict=False)] == [stride] * (len(item.starts) - 1)
    assert len(item.starts) == 1 or item.starts[-2] + item.size(len(item.starts) - 2) < len(item.document.ids)


def test_gold_is_found_in_windows_and_what_is_lost_is_counted(folder: Path) -> None:
    model = bertqa(folder / "bert")
    passages = [passage(i, 4) for i in range(3)]
    good, long = dialogue("g", passages, (Knowledge(1, 1, 2),)), dialogue("l", passages, (Knowledge(1, 0, 3),))
    encoder = WindowEncoder(model.tokenizer, InputConfig(40, 20), WindowConfig(stride=4))
    (item,), report = encoder.encode([good, long, replace(good, gold=())], training=True)
    assert (report.examples, report.unlabelled, report.gold_lost, report.dropped) == (3, 1, 1, 1)
    ((first, last),) = item.gold
    assert model.tokenizer.decode(item.document.ids[first : last + 1]).strip() == good.gold_texts[0]
    assert (item.document.spans[first], item.document.places[first], item.document.spans[last]) == (1, 0, 2)
    with pytest.raises(DataError, match="record d, field passages: .*no token"):
        encoder.encode([dialogue("d", (NO_PASSAGE,), (Knowledge(0, 0, 0),), (None,))])
    with pytest.raises(ConfigError, match="stride"):
        WindowEncoder(model.tokenizer, InputConfig(40, 20), WindowConfig(stride=18))
    with pytest.raises(ConfigError, match="at least 1"):
        WindowConfig(n_best=0)


def test_windows_of_a_training_step_and_their_labels(folder: Path) -> None:
    model = bertqa(folder / "bert")
    example = dialogue("w", [passage(i, 4) for i in range(4)], (Knowledge(1, 1, 1), Knowledge(3, 0, 1)))
    (item,) = windows_of(model, example)
    drawn = set()
    for step in range(30):
        chosen = windows_to_train(item, 3, seed=0, step=step)
        assert len(set(chosen.windows)) == 3 and chosen.windows == tuple(sorted(chosen.windows))
        assert chosen == windows_to_train(item, 3, seed=0, step=step)
        found = 0
        for w, (begin, end) in zip(chosen.windows, chosen.labels, strict=True):
            inside = [tokens for tokens in item.gold if item.holds(w, tokens)]
            if (begin, end) == NOT_HERE:
                assert not inside
                continue
            words = model.tokenizer.decode(item.input_ids(w)[begin : end + 1]).strip()
            assert words in example.gold_texts and item.choices(w)[begin] and item.choices(w)[end]
            drawn.add(words)
            found += 1
        assert found
    assert drawn == set(example.gold_texts)


def test_the_loss_is_that_of_each_window_by_hand(folder: Path) -> None:
    model = bertqa(folder / "bert")
    items = windows_of(model, *(dialogue(name, [passage(i, 4) for i in range(3)]) for name in "ab"), training=True)
    chosen = [windows_to_train(items[0], 2, 0, 1), windows_to_train(items[1], 3, 0, 1)]
    losses, right = [], 0
    for item in chosen:
        own = []
        for w, label in zip(item.windows, item.labels, strict=True):
            ids = torch.from_numpy(item.example.input_ids(w)).long()[None]
            hidden = model.encoder(input_ids=ids).last_hidden_state[0]
            allowed = torch.from_numpy(item.example.choices(w))
            allowed[0] = True
            logits = (hidden @ model.heads.weight.T + model.heads.bias).T
            logits = logits.masked_fill(~allowed, -torch.inf)
            own.append(-(logits[0].log_softmax(0)[label[0]] + logits[1].log_softmax(0)[label[1]]))
            right += int((logits.argmax(1).tolist()) == list(label))
        losses.append(torch.stack(own).mean())
    for group_size in (1, 2, 64):
        sums = window_loss(model.scores(chosen, group_size), chosen)
        assert float(sums[:2].sum().detach()) == pytest.approx(float(torch.stack(losses).sum().detach()), rel=1e-5)
        assert sums[2:].tolist() == [right, 5]


# BERTQA: answers -------------------------------------------------------------------------------------------------


def test_n_best_equals_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)
    for case in range(300):
        rows, length, most, count = 1 + case % 3, 1 + case % 11, 1 + case % 6, 1 + case % 9
        begin, end = (torch.randn(rows, length, generator=generator) for _ in range(2))
        mask = torch.rand(rows, length, generator=generator) < 0.7
        found = top_spans(begin, end, mask, most, count)
        for row in range(rows):
            pairs = sorted(
                (
                    (float(begin[row, i] + end[row, j]), i, j)
                    for i in range(length)
                    for j in range(i, min(length, i + most))
                    if mask[row, i] and mask[row, j]
                ),
                reverse=True,
            )[:count]
            kept = found.score[row] > -torch.inf
            mine = zip(found.begin[row][kept].tolist(), found.end[row][kept].tolist(), strict=True)
            assert list(mine) == [(i, j) for _, i, j in pairs], case
            assert found.score[row][kept].tolist() == pytest.approx([score for score, _, _ in pairs], abs=1e-6)


class Scripted(BertQaFinder):
    """A finder whose model prefers given document tokens, in every window that holds them."""

    def prefer(self, first: int, last: int, logit: float = 9.0, none: float = 0.0) -> None:
        def scores(chosen: list[ChosenWindows], group_size: int) -> list[TokenScores]:
            found = []
            for row, (item, w) in enumerate((one.example, w) for one in chosen for w in one.windows):
                logits = torch.zeros(2, 1, item.length(w))
                logits[:, 0, 0] = none
                shift = len(item.context) - item.starts[w]
                for i, place in enumerate((first + shift, last + shift)):
                    if item.holds(w, (first, last)):
                        logits[i, 0, place] = logit
                choices = torch.from_numpy(item.choices(w))[None]
                found.append(TokenScores(torch.tensor([row]), logits[0], logits[1], choices))
            return found

        self.model.scores = scores  # type: ignore[method-assign]


def test_an_answer_has_its_words_its_passage_and_its_spans(folder: Path) -> None:
    finder = Scripted(bertqa(folder / "bert", windows=WindowConfig(stride=16, max_answer=30)))
    example = dialogue("h", [passage(i, 3) for i in range(4)], (Knowledge(1, 1, 1),))
    (item,) = windows_of(finder.model, example)
    for gold in (Knowledge(1, 1, 1), Knowledge(2, 0, 1), Knowledge(3, 2, 2)):
        tokens = item.document.tokens_of(gold)
        assert tokens is not None
        finder.prefer(*tokens)
        (found,) = finder.identify([example])
        assert found.knowledge == gold and found.text == example.text_of(gold)
        assert found.score == pytest.approx(18.0) and 0.9 < found.begin <= 1
        assert found.searched == (0, 1, 2, 3) and 0.9 < sum(found.probabilities) <= 1
        assert found.probability == found.probabilities[gold.passage] > 0.9 and found.passages == (gold.passage,)
    # from within a span of one passage into the next: "blue ." and "roof the roof is"
    first = item.document.tokens_of(Knowledge(0, 2, 2))[1] - 1
    last = item.document.tokens_of(Knowledge(1, 0, 0))[0] + 2
    finder.prefer(first, last)
    (found,) = finder.identify([example])
    assert found.text == f"{example.passages[0].spans[2].split()[-2]} . roof the roof is"
    assert found.knowledge == Knowledge(1, 0, 0)


def test_all_windows_compete_and_the_longest_answer_is_a_limit(folder: Path) -> None:
    model = bertqa(folder / "bert")
    examples = [dialogue(name, [passage(i, 4) for i in range(4)]) for name in "abc"]
    for score_by in ("logits", "probabilities"):
        model.config = replace(model.config, search=replace(model.config.search, score_by=score_by))
        finder = BertQaFinder(model, batch_size=2, group_size=3)
        for item, found in zip(windows_of(model, *examples), finder.identify(examples), strict=True):
            best = (-np.inf, -1, -1)
            for w in range(len(item.starts)):
                ids, allowed = torch.from_numpy(item.input_ids(w)).long()[None], torch.from_numpy(item.choices(w))
                with torch.no_grad():
                    logits = model.heads(model.encoder(input_ids=ids).last_hidden_state[0]).T
                here = allowed.clone()
                here[0] = True
                values = logits.masked_fill(~here, -torch.inf)
                values = F.softmax(values, dim=1) if score_by == "probabilities" else values
                for i in range(len(allowed)):
                    for j in range(i, min(len(allowed), i + 12)):
                        if allowed[i] and allowed[j]:
                            shift = item.starts[w] - len(item.context)
                            best = max(best, (float(values[0, i] + values[1, j]), i + shift, j + shift))
            assert found.score == pytest.approx(best[0], abs=1e-5)
            words = model.tokenizer.decode(item.document.ids[best[1] : best[2] + 1])
            assert found.text.replace(" ", "") == words.replace(" ", "")


def test_no_answer_is_a_passage_where_there_is_one(folder: Path) -> None:
    finder = Scripted(bertqa(folder / "bert"))
    passages = [*(passage(i, 4) for i in range(3)), NO_PASSAGE]
    example = replace(dialogue("n", passages, (Knowledge(3, 0, 0),), (None,)), no_passage=True)
    (item,) = windows_of(finder.model, example, training=True)
    chosen = windows_to_train(item, 2, 0, 1)
    assert chosen.labels == (NOT_HERE,) * 2 and item.gold == ()
    tokens = item.document.tokens_of(Knowledge(1, 0, 0))
    assert NO_PASSAGE.title not in finder.model.tokenizer.decode(item.document.ids) and tokens is not None
    finder.prefer(*tokens, logit=5.0, none=6.0)
    (found,) = finder.identify([example])
    assert found.knowledge == Knowledge(3, 0, 0) and found.text == NO_PASSAGE.spans[0] and found.score == 12.0
    assert score_answer(example, found.knowledge.passage, found.text).exact == 1
    (elsewhere,) = finder.identify([replace(example, passages=example.passages[:3], gold=(), no_passage=False)])
    assert elsewhere.knowledge == Knowledge(1, 0, 0)  # where every answer has knowledge, one is given
    finder.model.windows = WindowConfig(stride=16, no_answer=3.0)
    assert finder.identify([example])[0].knowledge == Knowledge(1, 0, 0)
    with pytest.raises(ModelError, match="fast tokenizer"):
        answer_texts(object(), [(item, TokenAnswer(0, 1, 0.0, 0.0, 0.0))])


def test_bertqa_learns_and_its_checkpoint_answers(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = BertQaConfig(inputs=InputConfig(64, 24), windows=WindowConfig(stride=16, max_answer=8))
    one = job(folder, run, dialki=config, losses=NEXT_ALONE, total_steps=60, validate_every=20, checkpoint_every=60)
    result = one.run()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"] and "loss/history" not in rows[0]
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["validation"]["all"]["exact_match"] == result.best_score > 0.4
    assert metrics["validation"]["all"]["passage_accuracy"] > 0.4
    finder = load_finder(run, batch_size=5)
    assert isinstance(finder, BertQaFinder) and finder.model.config.threshold == metrics["threshold"]["gamma"]
    examples = toy_examples()
    alone = load_finder(run, batch_size=1).identify(examples)
    for answer, other, example in zip(finder.identify(examples), alone, examples, strict=True):
        assert answer.knowledge == other.knowledge and answer.score == pytest.approx(other.score, abs=1e-4)
        row = json.loads(json.dumps(answer.to_json(example)))
        assert row["text"] and example.passages[row["passage"]].id == row["passage_id"]
    assert one.run().already_done
    with pytest.raises(ModelError, match="its record has `windows`, which no DialkiConfig has"):
        KnowledgeFinder.load(run)


@pytest.mark.parametrize(
    ("config", "losses", "message"),
    [
        ({"windows": WindowConfig(), "contextualize": True}, NEXT_ALONE, "contextualize=false"),
        ({"windows": WindowConfig(), "units": "sentences"}, NEXT_ALONE, "units=passages"),
        ({"windows": WindowConfig(stride=400)}, NEXT_ALONE, "stride"),
        ({"windows": WindowConfig()}, LossConfig(1.0, 0.0), "BERTQA has one loss: give losses.history=0"),
        ({"windows": WindowConfig()}, LossConfig(0.0, 0.0, "all"), "losses.gold: BERTQA learns one answer at a time"),
        (
            {"windows": WindowConfig(), "search": SearchConfig(score_by="joint")},
            NEXT_ALONE,
            "score_by: BERTQA compares",
        ),
        ({"units": "words"}, NEXT_ALONE, "units: expected one of passages, sentences"),
    ],
)
def test_settings_that_do_not_go_together(folder: Path, config: dict, losses: LossConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind = BertQaConfig if "windows" in config else DialkiConfig
        job(folder, folder / "run", dialki=kind(**config), losses=losses)


def test_records_of_older_models_still_open(folder: Path, tmp_path: Path) -> None:
    """They name BERTQA's windows in every record: null in DIALKI's."""
    tiny_dialki(folder / "bert").save(tmp_path / "dialki")
    bertqa(folder / "bert").save(tmp_path / "bertqa")
    record = json.loads((tmp_path / "dialki" / RECORD).read_text())
    assert "windows" not in record
    (tmp_path / "dialki" / RECORD).write_text(json.dumps({**record, "windows": None}))
    assert load_dialki(tmp_path / "dialki").config == tiny_dialki(folder / "bert").config
    assert isinstance(load_finder(tmp_path / "dialki"), KnowledgeFinder)
    old = json.loads((tmp_path / "bertqa" / RECORD).read_text())
    assert old["windows"] == {"stride": 16, "max_answer": 12, "n_best": 20, "no_answer": 0.0}
    assert isinstance(load_finder(tmp_path / "bertqa"), BertQaFinder)
    (tmp_path / "dialki" / RECORD).write_text(json.dumps({**record, "window": 3}))
    with pytest.raises(ModelError, match="its record has `window`"):
        load_dialki(tmp_path / "dialki")


def test_what_a_bertqa_cannot_be() -> None:
    with pytest.raises(ConfigError, match="BERTQA has no logits of passages"):
        BertQaConfig(search=SearchConfig(select_by="logits"))
    with pytest.raises(ConfigError, match="units=passages"):
        BertQaConfig(units="whole")
