"""An assistant that retrieves, identifies and answers: what each part is given, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rl_toy import policy
from transformers import BertForSequenceClassification

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.generator import Response
from finegrained_rlhf.inscit import Assistant, AssistantSettings
from finegrained_rlhf.inscit.conversation import NO_INFORMATION, RESPONSE_TYPES, EvidencePassage
from finegrained_rlhf.models.encoders.classifier import TextClassifier
from finegrained_rlhf.models.tiny import TinyBertConfig
from finegrained_rlhf.models.tiny_networks import build_bert, build_tokenizer, encoder_tokenizer
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.text.chat import FusionConfig, PromptConfig

PASSAGES = {
    "The dog:1": ("Dog [SEP] Running", "One dog ran far away. It saw a cat."),
    "The cat:2": ("Cat", "The cat sat on a mat. It was red. Nobody saw it."),
    "Green:0": ("", "- blue\n- green"),
}
ASKED = ["who ran far away", "One dog ran.", "and where was the red cat"]
EARLIER = [EvidencePassage("The dog:1", "One dog ran far away. It saw a cat.", ("Dog", "Running"))]


class Script:
    """A reader that says what it is told, and remembers what it was given."""

    def __init__(self, said: str) -> None:
        self.policy = policy()
        self.policy.prompt = PromptConfig(fusion=FusionConfig())
        self.said, self.prompts = said, list[Prompt]()

    def stream(self, prompts: Sequence[Prompt], **_: Any) -> Iterator[list[list[Response]]]:
        self.prompts += prompts
        yield [[Response(self.said, 5, True)] for _ in prompts]


class Second:
    """An identifier that selects the second candidate."""

    def select(self, context: Any, earlier: Any, candidates: Sequence[EvidencePassage]) -> tuple[str, ...]:
        self.asked = context, earlier, [one.id for one in candidates]
        return (candidates[1].id,)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("corpus")
    rows = [{"id": name, "title": title, "text": text} for name, (title, text) in PASSAGES.items()]
    write_jsonl(place / "corpus.jsonl", rows)
    Bm25Config().build(str(place / "corpus.jsonl"), place / "index")
    return place


def assistant(index: Path, said: str, identifier: Any = None, **keys: Any) -> tuple[Assistant, Script]:
    reader: Any = Script(said)
    retriever = Bm25Config().open(index / "index")
    return Assistant(Corpus(index / "corpus.jsonl"), retriever, identifier, reader, **keys), reader


def test_a_reader_that_names_its_evidence(index: Path) -> None:
    ours, reader = assistant(index, "evidence: The cat:2 | Moon:9 answer: The cat sat on a mat. Nobody saw it.")
    found = ours.answer(ASKED, [EARLIER])
    assert found.response == "The cat sat on a mat. Nobody saw it." and found.response_type is None
    (cited,) = found.evidence
    assert (cited.passage.id, cited.passage.titles) == ("The cat:2", ("Cat",))
    assert [cited.passage.text[start:end] for start, end in cited.spans] == ["The cat sat on a mat.", "Nobody saw it."]
    (prompt,) = reader.prompts
    assert [p.id for p in prompt.metadata["passages"]] == ["The dog:1", "The cat:2"] and len(prompt.pieces) == 2
    assert prompt.metadata["passages"][0].title == "Dog|Running"
    assert prompt.metadata["question"].endswith("question 2: and where was the red cat")
    silent, _ = assistant(index, "nothing to say")
    assert silent.answer(ASKED).response == NO_INFORMATION and silent.answer(ASKED).evidence == ()


def test_an_identifier_selects_and_a_classifier_names_the_type(index: Path) -> None:
    plain = encoder_tokenizer(build_tokenizer([" ".join(text for _, text in PASSAGES.values())]), 64)
    bert = build_bert(plain, TinyBertConfig(16, 32, 1, 2, max_length=64), 0)
    config = bert.config
    config.num_labels, config.id2label = 4, dict(enumerate(RESPONSE_TYPES))
    model = BertForSequenceClassification(config).eval()
    model.classifier.weight.data.zero_()
    model.classifier.bias.data[:] = model.classifier.bias.new_tensor([0.0, 1.0, 0.0, 0.0])
    types = TextClassifier(model, plain, RESPONSE_TYPES[0], "softmax", 64, "truncate")
    identifier = Second()
    keys: dict[str, Any] = {"types": types, "settings": AssistantSettings(typed=True)}
    ours, reader = assistant(index, " It was red. ", identifier, **keys)
    found = ours.answer(ASKED, [EARLIER])
    assert (found.response, found.response_type) == ("It was red.", "clarification")
    assert [cited.passage.id for cited in found.evidence] == ["The cat:2"]
    assert identifier.asked == (ASKED, [EARLIER], ["The dog:1", "The cat:2"])
    assert reader.prompts[0].metadata["turns"][-1] == "and where was the red cat response type: clarification"
    assert [p.id for p in reader.prompts[0].metadata["passages"]] == ["The cat:2"]


def test_what_cannot_be_answered_is_refused(index: Path) -> None:
    ours, _ = assistant(index, "x")
    for dialogue, earlier, problem in (
        (ASKED[:2], None, "expected an odd number of utterances, got 2"),
        ([" "], None, r"dialogue\[0\]"),
        (ASKED, [], "expected the evidence of 1 earlier answers, got 0"),
    ):
        with pytest.raises(DataError, match=problem):
            ours.answer(dialogue, earlier)
    with pytest.raises(ConfigError, match="typed needs types and an identifier"):
        assistant(index, "x", settings=AssistantSettings(typed=True))


@pytest.mark.parametrize("key", ["passages", "max_prompt_tokens", "max_new_tokens"])
def test_settings_of_nothing(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: expected at least 1, got 0"):
        AssistantSettings(**{key: 0})
