"""A handful of dialogues over a handful of passages, with labels, an index and a tiny policy, on disk."""

from __future__ import annotations

from pathlib import Path

from finegrained_rlhf.conqrr.data import PassageLabel, RewriteExample, write_rewrite_jsonl
from finegrained_rlhf.conqrr.labels import write_labels
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.policy import Seq2SeqPolicy
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.retrieval.bm25.retriever import Bm25LightConfig

PEOPLE = ("Ada", "Bob", "Cleo", "Dan", "Eve", "Finn")
THINGS = {"car": "red", "boat": "blue", "house": "green"}


def passages() -> list[dict[str, str]]:
    """One a person and thing."""
    return [
        {"id": f"{person}-{thing}", "text": f"the {thing} of {person} is {colour}"}
        for person in PEOPLE
        for thing, colour in THINGS.items()
    ]


def questions() -> list[RewriteExample]:
    """Two turns a person: the second says "its" and has a rewrite."""
    found = []
    for number, person in enumerate(PEOPLE):
        first = f"what colour is the car of {person}?"
        found.append(RewriteExample(f"d{number}_1", f"d{number}", 1, (), first, first, "red", (f"{person}-car",)))
        history = (first, "it is red.")
        second = "and the boat?"
        rewrite = f"what colour is the boat of {person}?"
        found.append(
            RewriteExample(f"d{number}_2", f"d{number}", 2, history, second, rewrite, "blue", (f"{person}-boat",))
        )
    return found


def labels() -> list[PassageLabel]:
    """The gold passage against the same person's house; the last dialogue has none."""
    return [
        PassageLabel(question.id, question.gold[0], f"{question.gold[0].split('-')[0]}-house")
        for question in questions()[:-2]
    ]


def make_files(path: Path) -> Path:
    """`corpus.jsonl`, `questions.jsonl`, `labels.jsonl`, `t5/` and a BM25-light `index/`."""
    write_jsonl(path / "corpus.jsonl", passages())
    write_rewrite_jsonl(path / "questions.jsonl", questions())
    write_labels(path / "labels.jsonl", labels())
    texts = [passage["text"] for passage in passages()] + [q.context + " " + (q.rewrite or "") for q in questions()]
    tokenizer = build_tokenizer(texts)
    model = build_t5(tokenizer, TinyT5Config(d_model=16, d_ff=32, num_layers=1, num_heads=2))
    save_policy(Seq2SeqPolicy(model, tokenizer), path / "t5")
    Bm25LightConfig(str(path / "t5")).build(str(path / "corpus.jsonl"), path / "index")
    return path
