"""Tiny models on disk: which words a data file holds, and the directories that are written from them.

Every string in a data file (JSON, JSON lines, plain text) is corpus, except under the key `id`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, read_json, read_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed
from finegrained_rlhf.dialogue.tokens import MARKER_TOKENS
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.models.tiny.config import (
    TinyBertConfig,
    TinyGPT2Config,
    TinyLlamaConfig,
    TinyLongformerConfig,
    TinyT5Config,
    TokenizerKind,
)


def _strings(value: Any) -> Iterator[str]:
    """Every string inside a JSON value; object keys are no text, and neither are ids."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "id":
                yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def read_corpus(files: str | Path | Sequence[str | Path]) -> list[str]:
    """The texts of data files: every string but ids of a `.json` or `.jsonl` file, every line of any other file.

    Raises:
        DataError: a file is missing, damaged or holds no text.
    """
    paths = [files] if isinstance(files, (str, Path)) else list(files)
    texts: list[str] = []
    for path in map(Path, paths):
        before = len(texts)
        if path.suffix == ".jsonl":
            texts.extend(text for row in read_jsonl(path) for text in _strings(row))
        elif path.suffix == ".json":
            texts.extend(_strings(read_json(path)))
        else:
            try:
                texts.extend(line for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
            except (FileNotFoundError, IsADirectoryError):
                raise DataError("no such file", file=path) from None
            except UnicodeDecodeError as error:
                raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
        if len(texts) == before:
            raise DataError("holds no text to build a vocabulary from", file=path)
    if not texts:
        raise ConfigError("building a tokenizer needs at least one corpus file, got none")
    return texts


def make_tiny_models(
    corpus: Iterable[str],
    output_dir: str | Path,
    seed: int,
    *,
    tokenizer: TokenizerKind = "word",
    vocab_size: int = 8000,
    lowercase: bool = False,
    t5: TinyT5Config | None = None,
    gpt2: TinyGPT2Config | None = None,
    llama: TinyLlamaConfig | None = None,
    longformer: TinyLongformerConfig | None = None,
    bert: TinyBertConfig | None = None,
) -> dict[str, Path]:
    """Write `t5/`, `gpt2/`, `llama/`, `longformer/` and `bert/` under `output_dir`, each a model with its tokenizer.

    They share one vocabulary; BERT's has the `MARKER_TOKENS` of dialogues in addition.

    Returns:
        The directory of each model by name.
    """
    from finegrained_rlhf.models.tiny.bert import build_bert, marked_tokenizer
    from finegrained_rlhf.models.tiny.gpt2 import build_gpt2
    from finegrained_rlhf.models.tiny.llama import build_llama
    from finegrained_rlhf.models.tiny.longformer import build_longformer
    from finegrained_rlhf.models.tiny.t5 import build_t5
    from finegrained_rlhf.models.tiny.tokenizers import build_tokenizer, causal_tokenizer, encoder_tokenizer

    output_dir = Path(output_dir)
    gpt2, llama = gpt2 or TinyGPT2Config(), llama or TinyLlamaConfig()
    longformer, bert = longformer or TinyLongformerConfig(), bert or TinyBertConfig()
    base = build_tokenizer(corpus, tokenizer, vocab_size, lowercase=lowercase)
    of_dialogues = marked_tokenizer(base, bert.max_length, MARKER_TOKENS)
    built = {
        "t5": (build_t5(base, t5, seed), base),
        "gpt2": (build_gpt2(base, gpt2, seed), causal_tokenizer(base, gpt2.max_length)),
        "llama": (build_llama(base, llama, seed), causal_tokenizer(base, llama.max_length)),
        "longformer": (build_longformer(base, longformer, seed), encoder_tokenizer(base, longformer.max_length)),
        "bert": (build_bert(of_dialogues, bert, seed), of_dialogues),
    }
    for name, (model, its_tokenizer) in built.items():
        with atomic_directory(output_dir / name) as directory, quiet_transformers():
            model.save_pretrained(directory)
            its_tokenizer.save_pretrained(directory)
    return {name: output_dir / name for name in built}


@dataclass(frozen=True)
class MakeTinyModels(Settings):
    """What `finegrained make-tiny-models` runs.

    Attributes:
        data: corpus file or files (QA-FEEDBACK or FactWorld JSON, JSON lines or plain text).
        output_dir: where `t5/`, `gpt2/`, `llama/`, `longformer/` and `bert/` are written.
        seed: of the random weights.
        tokenizer: `word` or `bpe`.
        vocab_size: upper limit of the vocabulary in tokens.
        lowercase: read all texts as lower case.
        t5: sizes of the T5.
        gpt2: sizes of the GPT-2.
        llama: sizes of the Llama.
        longformer: sizes of the Longformer.
        bert: sizes of the BERT.
    """

    data: InputFile | Path | Sequence[InputFile | Path]
    output_dir: OutputDirectory | Path
    seed: Seed = 0
    tokenizer: TokenizerKind = "word"
    vocab_size: int = 8000
    lowercase: bool = False
    t5: TinyT5Config = field(default_factory=TinyT5Config)
    gpt2: TinyGPT2Config = field(default_factory=TinyGPT2Config)
    llama: TinyLlamaConfig = field(default_factory=TinyLlamaConfig)
    longformer: TinyLongformerConfig = field(default_factory=TinyLongformerConfig)
    bert: TinyBertConfig = field(default_factory=TinyBertConfig)

    def run(self) -> dict[str, Path]:
        """Build and write the models; prints where they lie and how large they are."""
        directories = make_tiny_models(
            read_corpus(self.data),
            self.output_dir,
            self.seed,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            lowercase=self.lowercase,
            t5=self.t5,
            gpt2=self.gpt2,
            llama=self.llama,
            longformer=self.longformer,
            bert=self.bert,
        )
        for name, directory in directories.items():
            config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
            print(f"{name}: {directory} (vocabulary {config['vocab_size']})")
        return directories
