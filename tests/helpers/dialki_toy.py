"""A tiny BERT and small dialogues for the tests of DIALKI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from finegrained_rlhf.dialki.inputs.batches import Chosen, DialkiBatch, collate, passages_to_search
from finegrained_rlhf.dialki.inputs.examples import EncodedExample, InputConfig, InputEncoder
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.dialki.model.model import DialkiModel, new_dialki
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.training.job import DialkiBatchConfig, TrainDialki
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig

THINGS = ("door", "roof", "wall", "lamp", "desk", "yard")
COLOURS = ("red", "blue", "green", "white", "black", "brown")
CORPUS = [f"what about the {thing} of house ? it is {colour} ." for thing, colour in zip(THINGS, COLOURS, strict=True)]
CORPUS += ["one two three four five six seven eight nine ten and tell me"]


def passage(number: int, spans: int = 3) -> Passage:
    """Passage `number`: the `number`-th thing of the house and its colours, one sentence a span."""
    thing = THINGS[number % len(THINGS)]
    return Passage(
        f"p{number}", thing, tuple(f"the {thing} is {COLOURS[(number + i) % len(COLOURS)]} ." for i in range(spans))
    )


def dialogue(
    name: str = "d",
    passages: Sequence[Passage] | None = None,
    gold: Sequence[Knowledge] = (Knowledge(1, 0, 1),),
    history: Sequence[Knowledge | None] = (None, Knowledge(0, 1, 1), Knowledge(2, 0, 2)),
) -> DialogueExample:
    """User, agent, user, …: one turn for each entry of `history`, the last one the user's."""
    assert len(history) % 2
    turns = tuple(
        Turn("agent" if i % 2 else "user", f"tell me {' '.join(THINGS[i : i + 2])} of {name}", known)
        for i, known in enumerate(history)
    )
    return DialogueExample(name, turns, tuple(passages or map(passage, range(4))), tuple(gold), "it is red .")


@cache
def tokenizer() -> Any:
    return encoder_tokenizer(build_tokenizer(CORPUS), 512)


def save_bert(path: Path, layers: int = 2, width: int = 16, dropout: float = 0.0, positions: int = 256) -> Path:
    """A tiny BERT with weights large enough to matter, and its tokenizer, in the Hugging Face layout."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer()),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def tiny_dialki(path: Path, large_heads: bool = True, **changes: Any) -> DialkiModel:
    """An untrained DIALKI on `save_bert`, without dropout; large head weights make every input matter."""
    torch.manual_seed(1)
    changes = {"inputs": InputConfig(160, 80), "dropout": 0.0, **changes}
    model = new_dialki(path, DialkiConfig(**changes))
    if large_heads:
        with torch.no_grad():
            for parameter in model.heads.parameters():
                parameter.normal_(std=0.4)
    return model


def encoded(model: DialkiModel, examples: Sequence[DialogueExample], training: bool = False) -> list[EncodedExample]:
    return InputEncoder(model.tokenizer, model.config.inputs).encode(examples, training)[0]


def whole_batch(model: DialkiModel, examples: Sequence[DialogueExample]) -> tuple[list[Chosen], DialkiBatch]:
    """All passages of all examples."""
    chosen = [passages_to_search(item, 99) for item in encoded(model, examples)]
    chosen = [replace(item, gold=item.example.gold[0]) if item.example.gold else item for item in chosen]
    return chosen, collate(chosen, model.pad_id)


def toy_examples(count: int = 6) -> list[DialogueExample]:
    """Three passages of two spans; what an agent turn rests on holds "ten", what a user turn asks about "nine"."""
    examples = []
    for i in range(count):
        spans = [[f"the {THINGS[(i + k) % 6]} is {colour} ." for colour in COLOURS[k : k + 2]] for k in range(3)]
        gold, asked = Knowledge(i % 3, i % 2, i % 2), Knowledge((i + 1) % 3, 1, 1)
        for place, cue in ((gold, "ten"), (asked, "nine")):
            spans[place.passage][place.begin] = f"{cue} tell me ."
        passages = tuple(Passage(f"p{k}", THINGS[(i + k) % 6], tuple(part)) for k, part in enumerate(spans))
        turns = (
            Turn("user", "tell me the house", asked),
            Turn("agent", "it is red .", gold if i != 1 else None),
            Turn("user", "what about it ?"),
        )
        examples.append(DialogueExample(f"d{i}", turns, passages, (gold,), "it is .", unseen=bool(i % 2)))
    return examples


def job(folder: Path, output: Path, **changes: Any) -> TrainDialki:
    """A run of six steps on the dialogues and the BERT of a folder."""
    settings: dict[str, Any] = {
        "validation_data": str(folder / "dialogues.jsonl"),
        "dialki": DialkiConfig(inputs=InputConfig(160, 80), dropout=0.0),
        "losses": LossConfig(1.0, 1.0),
        "batches": DialkiBatchConfig(batch_size=3, passages=3, eval_batch_size=4),
        "total_steps": 6,
        "validate_every": 3,
        "checkpoint_every": 2,
        "processes": ProcessConfig("fp32", 1),
        **changes,
    }
    optimizer = OptimizerConfig(lr=5e-3, max_grad_norm=1.0, schedule="constant")
    return TrainDialki(
        data=str(folder / "dialogues.jsonl"),
        model=str(folder / "bert"),
        output_dir=str(output),
        optimizer=optimizer,
        **settings,
    )
