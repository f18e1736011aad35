"""Encoders trained to tell which snippets a turn of DSTC11 track 5 needs: towers of their own, or one for the pair.

What trains them is sentence-transformers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from finegrained_lab.experiments.dialki.snippet_sets import Score, by_cosine, choose_rule, score_turns, set_scores
from finegrained_lab.published.dialogues.dstc11_track import Track, read_track
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, Seed, above, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.models.from_disk import open_cross_encoder, open_sentence_transformer
from finegrained_rlhf.runtime.precision import best_precision, processor_flags

if TYPE_CHECKING:
    from datasets import Dataset

Kind = Literal["bi_encoder", "cross_encoder"]
TOKENS = 128
"""Most tokens of a text, or of a pair."""


@dataclass(frozen=True, kw_only=True)
class TrainSnippetEncoder(Settings):
    """Train an encoder on `train` until the F1 of its sets on `dev` stops rising; a step of `dialki/dstc11_track`.

    A query is the last turn. `bi_encoder`: each needed snippet against others of the same entities and those of the
    other queries in the batch (in-batch softmax over cosines). `cross_encoder`: query and snippet as one input, needed
    or not (binary cross-entropy).

    Attributes:
        data: directory of the track's files.
        encoder: pretrained; where both kinds start.
        output_dir: gets `model/`, of the best epoch, and `training.json`, what `dev` said after each.
        kind: what is trained.
        negatives: snippets of the same entities that are not needed, for each that is.
        lr: learning rate.
        epochs: at most.
        patience: ends after so many epochs without a better one.
        batch_size: needed snippets, or pairs, a step.
        seed: of order, negatives and dropout.
    """

    data: InputFile
    encoder: ModelName
    output_dir: OutputDirectory
    kind: Kind
    negatives: Annotated[int, at_least(1)] = 3
    lr: Annotated[float, above(0)] = 5e-5
    epochs: Annotated[int, at_least(1)] = 12
    patience: Annotated[int, at_least(1)] = 2
    batch_size: Annotated[int, at_least(2)] = 32
    seed: Seed = 0

    def run(self) -> list[dict[str, float]]:
        """Train, write, print one line; returns what `dev` said after each epoch.

        Raises:
            DataError: broken files.
        """
        parts = {part: read_track(self.data, part) for part in ("train", "dev")}
        examples = training_examples(parts["train"], self.kind, self.negatives, self.seed)
        with tempfile.TemporaryDirectory() as scratch:
            trainer = self._trainer(examples, evaluator_of(self.kind, parts["dev"]), scratch)
            trainer.train()
            trainer.model.save_pretrained(str(Path(self.output_dir) / "model"))
        said = [
            {"epoch": row["epoch"], **{name: row[f"eval_{name}"] for name in ("f1", "exact_match")}}
            for row in trainer.state.log_history
            if "eval_f1" in row
        ]
        write_json(Path(self.output_dir) / "training.json", {"dev": said, "examples": len(examples)})
        best = max(said, key=lambda row: row["f1"])
        print(
            f"{self.kind}: F1 {best['f1']:.3f} on dev after epoch {best['epoch']:g} of {len(said)} -> {self.output_dir}"
        )
        return said

    def _trainer(self, examples: Dataset, watch: Any, scratch: str) -> Any:
        from transformers import EarlyStoppingCallback

        trainer, settings, loss = _library(self.kind)
        model = open_scorer(self.kind, self.encoder, self.seed)
        arguments = settings(
            output_dir=scratch,
            num_train_epochs=self.epochs,
            per_device_train_batch_size=self.batch_size,
            learning_rate=self.lr,
            warmup_steps=0.1,
            seed=self.seed,
            batch_sampler="no_duplicates" if self.kind == "bi_encoder" else "batch_sampler",
            use_cpu=True,
            bf16=_multiplies_bf16(),
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            save_only_model=True,
            load_best_model_at_end=True,
            metric_for_best_model="f1",
            greater_is_better=True,
            report_to=[],
            disable_tqdm=True,
        )
        return trainer(
            model=model,
            args=arguments,
            train_dataset=examples,
            loss=loss(model),
            evaluator=watch,
            callbacks=[EarlyStoppingCallback(self.patience)],
        )


def _library(kind: Kind) -> tuple[Any, Any, Any]:
    """Trainer, its arguments and the loss of a kind."""
    if kind == "bi_encoder":
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

        return SentenceTransformerTrainer, SentenceTransformerTrainingArguments, MultipleNegativesRankingLoss
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    return CrossEncoderTrainer, CrossEncoderTrainingArguments, BinaryCrossEntropyLoss


def evaluator_of(kind: Kind, track: Track) -> Any:
    """What tells sentence-transformers how good a model's sets are on turns whose entities are known, by the best rule.

    Returns:
        A `BaseEvaluator`: model → `f1` and `exact_match`.
    """
    from sentence_transformers.base.evaluation import BaseEvaluator

    turns = [turn for turn in track.turns if turn.label.target]

    class SetEvaluator(BaseEvaluator):  # type: ignore[misc]
        def __call__(self, model: Any, *_: Any, **__: Any) -> dict[str, float]:
            scored = score_turns(track, turns, scorer_of(kind, model), lambda turn: turn.label.entities)
            found = set_scores(scored, choose_rule(scored))
            return {"f1": found["selection_f1"], "exact_match": found["selection_exact_match"]}

    return SetEvaluator()


def training_examples(track: Track, kind: Kind, negatives: int, seed: int) -> Dataset:
    """Rows of a query, a snippet that it needs and some of the same entities that it does not.

    A bi-encoder reads them as they are, a cross-encoder as pairs with label 1 or 0. A turn all of whose candidates are
    needed gives none.
    """
    from datasets import Dataset

    rows = list(_rows(track, negatives, seed))
    if kind == "bi_encoder":
        names = ("query", "positive", *(f"negative_{i}" for i in range(negatives)))
        return Dataset.from_list([dict(zip(names, row, strict=True)) for row in rows])
    return Dataset.from_list(
        [{"query": row[0], "snippet": text, "label": float(i == 0)} for row in rows for i, text in enumerate(row[1:])]
    )


def _rows(track: Track, negatives: int, seed: int) -> Iterator[tuple[str, ...]]:
    for turn in track.turns:
        texts = {one: text for entity in sorted(turn.label.entities) for one, text in track.texts[entity].items()}
        needed = sorted(turn.label.snippets)
        others = [text for one, text in texts.items() if one not in turn.label.snippets]
        if not others:
            continue
        draw = np.random.default_rng(stable_hash(seed, "dstc11 negatives", turn.number))
        for one in needed:
            picked = draw.choice(len(others), negatives, replace=len(others) < negatives)
            yield turn.turns[-1], texts[one], *(others[i] for i in picked)


def open_scorer(kind: Kind, directory: str, seed: int = 0) -> Any:
    """The model of a directory of sentence-transformers, trained or to be; `seed` draws what is new in it."""
    import torch

    torch.manual_seed(seed)
    if kind == "cross_encoder":
        return open_cross_encoder(Path(directory), "cpu", TOKENS)
    model = open_sentence_transformer(Path(directory), "cpu")
    model.max_seq_length = TOKENS
    return model


def scorer_of(kind: Kind, model: Any) -> Score:
    """A model's score of each candidate: a cosine, or the probability that it is needed; each is read once."""
    import torch

    def fast(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def values(inputs: Any) -> Any:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=_multiplies_bf16()):
                return read(inputs)

        return _kept(values)

    if kind == "bi_encoder":
        vectors = fast(lambda texts: model.encode(texts, normalize_embeddings=True))
        return by_cosine(lambda texts: np.stack(vectors(texts)))
    needed = fast(lambda pairs: model.predict(pairs, batch_size=64, activation_fn=torch.nn.Sigmoid()).tolist())
    return lambda _, turn, candidates: needed([(turn.turns[-1], text) for text in candidates.values()])


def _multiplies_bf16() -> bool:
    """Whether the processor does; where it only emulates bf16, all of this takes nine times as long."""
    import torch

    return best_precision(torch.device("cpu"), processor_flags())[0] == "bf16"


def _kept(read: Callable[[list[Any]], Iterable[Any]]) -> Callable[[Sequence[Any]], list[Any]]:
    """The same function of several inputs, which asks for each of them once."""
    known: dict[Any, Any] = {}

    def values(inputs: Sequence[Any]) -> list[Any]:
        new = [one for one in dict.fromkeys(inputs) if one not in known]
        if new:
            known.update(zip(new, read(new), strict=True))
        return [known[one] for one in inputs]

    return values
