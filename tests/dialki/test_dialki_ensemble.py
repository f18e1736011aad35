"""The ensemble: one model, two equal ones, and two different ones whose averaged distributions are worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from dialki_toy import CORPUS, dialogue, save_bert, tiny_dialki, toy_examples, whole_batch
from script_runs import rows

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialki.finder import EnsembleFinder, Found, KnowledgeFinder, mean_scores
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.jobs import EvaluateDialki, IdentifyKnowledge
from finegrained_rlhf.dialki.model.heads import MASKED, NextScores
from finegrained_rlhf.dialki.model.model import DialkiModel, new_model
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.dialogue.records import Turn
from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from finegrained_rlhf.runtime.process_config import ProcessConfig

EXAMPLES = [*toy_examples(), dialogue(), dialogue("e", history=(None,) * 5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ensemble")
    save_bert(path / "bert", layers=1)
    model(path).save(path / "one")
    model(path, other=True).save(path / "two")
    lines = []
    for example in toy_examples():
        turns = (*example.turns, Turn("agent", "it is .", example.gold[0]))
        lines.append(dialogue_row(example.id, turns, example.passages, example.unseen))
    write_dialogues(path / "dialogues.jsonl", lines)
    return path


def model(folder: Path, other: bool = False, **changes: object) -> DialkiModel:
    """A DIALKI on the tiny BERT; the other one has other heads."""
    made = tiny_dialki(folder / "bert", **changes)
    if other:
        torch.manual_seed(7)
        with torch.no_grad():
            for parameter in made.heads.parameters():
                parameter.normal_(std=0.6)
    return made


def numbers(found: Found) -> tuple[float, ...]:
    return (found.probability, found.begin, found.end, *found.probabilities)


@pytest.mark.parametrize("score_by", ["probabilities", "logits", "joint"])
@pytest.mark.parametrize("count", [1, 2])
def test_equal_models_answer_as_one(folder: Path, score_by: str, count: int) -> None:
    config = SearchConfig(score_by=score_by)  # type: ignore[arg-type]
    one = KnowledgeFinder(model(folder, search=config)).identify(EXAMPLES)
    found = EnsembleFinder([model(folder, search=config) for _ in range(count)]).identify(EXAMPLES)
    for alone, together in zip(one, found, strict=True):
        assert (alone.knowledge, alone.text, alone.searched) == (together.knowledge, together.text, together.searched)
        assert numbers(together) == pytest.approx(numbers(alone), abs=1e-6)
        assert score_by == "logits" or together.score == pytest.approx(alone.score, abs=1e-5)


def test_means_by_hand() -> None:
    """Each of two models prefers its own passage and spans; the mean prefers a third, which neither does."""
    some = torch.ones(1, 3, dtype=torch.bool)
    spans = torch.ones(1, 3, 3, dtype=torch.bool)
    spans[0, :, 2] = False

    def scores(passage: list[float], begin: list[float]) -> NextScores:
        logits = torch.tensor([[*begin, 1.0]]).log()[:, None].expand(1, 3, 3)  # the last is no candidate: not masked
        return NextScores(torch.tensor([passage]).log(), logits, logits.flip(2).roll(-1, 2), some, spans)

    mean = mean_scores([scores([0.5, 0.1, 0.4], [0.9, 0.1]), scores([0.1, 0.5, 0.4], [0.3, 0.7])])
    assert mean.passage.softmax(1)[0].tolist() == pytest.approx([0.3, 0.3, 0.4])
    assert mean.begin.softmax(2)[0, 1].tolist() == pytest.approx([0.6, 0.4, 0.0])
    assert mean.end.softmax(2)[0, 1].tolist() == pytest.approx([0.4, 0.6, 0.0])
    assert float(mean.begin[0, 0, 2]) == MASKED


def test_two_models_give_the_argmax_of_their_mean(folder: Path) -> None:
    """From each model's own distributions: the passage first, then the run of spans in it."""
    models = [model(folder), model(folder, other=True)]
    finders = [KnowledgeFinder(one) for one in models]
    alone = [finder.identify(EXAMPLES) for finder in finders]
    together = EnsembleFinder(models).identify(EXAMPLES)
    for first, second, found, example in zip(*alone, together, EXAMPLES, strict=True):
        means = [(a + b) / 2 for a, b in zip(first.probabilities, second.probabilities, strict=True)]
        best = means.index(max(means))
        assert found.knowledge.passage == best and found.probabilities == pytest.approx(means, abs=1e-6)
        begin, end = (torch.stack(part).mean(0).tolist() for part in _spans_alone(models, example, best))
        pairs = {(i, j): begin[i] + end[j] for i in range(len(begin)) for j in range(i, len(end))}
        assert (found.knowledge.begin, found.knowledge.end) == max(pairs, key=lambda pair: pairs[pair])
        assert found.score == pytest.approx(max(pairs.values()), abs=1e-5)
        assert found.id == example.id
    assert any(one.knowledge != two.knowledge for one, two in zip(*alone, strict=True))


def _spans_alone(
    models: list[DialkiModel], example: object, passage: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Begin and end probabilities of a passage by each model, its batch taken by itself."""
    begin, end = [], []
    for one in models:
        _, batch = whole_batch(one, [example])  # type: ignore[list-item]
        with torch.no_grad():
            scores = one.next_scores(one.encode(batch), batch)
        mask = scores.span_mask[0, passage]
        begin.append(scores.begin[0, passage][mask].softmax(0))
        end.append(scores.end[0, passage][mask].softmax(0))
    return begin, end


def test_scripts_take_an_ensemble(folder: Path, tmp_path: Path) -> None:
    """Both jobs answer as the finder does; figures of gates are left out."""
    data, one = str(folder / "dialogues.jsonl"), ProcessConfig("fp32", 1)
    both = [str(folder / "two")]
    EvaluateDialki(str(folder / "one"), data, str(tmp_path / "out"), plots=False, ensemble=both, processes=one).run()
    IdentifyKnowledge(str(folder / "one"), data, str(tmp_path / "found.jsonl"), ensemble=both, processes=one).run()
    result = json.loads((tmp_path / "out/evaluation.json").read_text())
    assert (result["system"], result["models"], result["gate_similarity"]) == ("DIALKI", 2, [])
    identified = {row["id"]: row["text"] for row in rows(tmp_path / "found.jsonl")}
    evaluated = {row["id"]: row["text"] for row in rows(tmp_path / "out/answers.jsonl")}
    assert evaluated and evaluated.items() <= identified.items()


def test_models_that_do_not_read_alike_are_one_clear_error(folder: Path, tmp_path: Path) -> None:
    first = model(folder)
    for changes, message in (
        ({"inputs": InputConfig(150, 80)}, r"ensemble: model 2 has other dialki\.inputs than the first"),
        ({"units": "sentences"}, r"ensemble: model 2 has other dialki\.units than the first: sentences and passages"),
    ):
        with pytest.raises(ConfigError, match=message):
            EnsembleFinder([first, model(folder, **changes)])
    stranger = model(folder)
    stranger.tokenizer = encoder_tokenizer(build_tokenizer([*CORPUS, "something else is said"]), 512)
    with pytest.raises(ConfigError, match="ensemble: model 2 has another tokenizer than the first"):
        EnsembleFinder([first, stranger])
    logits = model(folder, search=SearchConfig(select_by="logits"))
    with pytest.raises(ConfigError, match="ensemble: γ of the first model is compared with logits"):
        EnsembleFinder([logits, first])


@pytest.mark.needs("finegrained_lab")
def test_another_system_is_no_member(folder: Path, tmp_path: Path) -> None:
    from finegrained_lab.baselines.bertqa import BertQaModel
    from finegrained_lab.baselines.config import BertQaConfig, WindowConfig

    config = BertQaConfig(inputs=InputConfig(160, 80), windows=WindowConfig(20))
    new_model(folder / "bert", config, BertQaModel).save(tmp_path / "qa")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected DIALKI or Multi-Sentence"):
        load_finder(tmp_path / "qa", ensemble=[folder / "one"])
