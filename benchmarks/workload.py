"""Weights, prompts and reward models of a benchmark: random, seeded, the same for both sides.

Knows transformers' model classes and the project's templates; downloads nothing. Texts are made of numbered words, so
that every id has a text, the text gives the id back, and responses of a random policy fall into sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import nn
from transformers import (
    LongformerConfig,
    LongformerForSequenceClassification,
    LongformerForTokenClassification,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
)

from benchmarks.families import (
    CausalShape,
    T5Shape,
    build_backbone,
    build_causal,
    build_t5gemma,
    causal_config,
    t5gemma_config,
)
from benchmarks.profiles import LongformerShape, Profile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import seed_everything, stable_hash
from finegrained_rlhf.models.value import ValueHead
from finegrained_rlhf.text.segmentation import Span, sub_sentence_spans, trim
from finegrained_rlhf.text.templates import task_text
from finegrained_rlhf.training.order import items_of_step
from reward_models.encoders.models import ID2LABEL, RewardModel
from reward_models.record import RewardModelRecord

SPECIALS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>"}
PAD, EOS, CLS = 0, 1, 3
TEMPLATE_WORDS = "question: context: wikipage: text: answer: |".split()
FIRST_WORD = len(SPECIALS) + len(TEMPLATE_WORDS)
SENTENCE, CLAUSE = 16, 8
"""Every 16th word ends a sentence; of the rest every 8th ends in a comma."""
COMPONENTS: dict[str, str] = {
    "relevance": "relevance",
    "factuality": "factuality",
    "completeness": "completeness",
}
WEIGHTS = {"relevance": 0.3, "factuality": 0.5, "completeness": 0.3}
SPECIAL_SCALE = 0.01


@dataclass(frozen=True)
class Passage:
    """A passage as the templates read it: title and text."""

    title: str
    text: str


class PlainSegmenter:
    """Cuts sentences after `.`, `!` or `?` before white space, with regular expressions alone.

    Satisfies `finegrained_rlhf.text.segmentation.Segmenter`, so that the benchmark needs no spaCy.
    """

    def sentences(self, text: str) -> list[Span]:
        """Character spans of the sentences."""
        ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", text)]
        pieces = zip([0, *ends], [*ends, len(text)], strict=True)
        return [span for span in (trim(piece, text) for piece in pieces) if span is not None]

    def sub_sentences(self, text: str) -> list[Span]:
        """Character spans of the sub-sentences."""
        return sub_sentence_spans(text, self.sentences(text))


def word(number: int) -> str:
    """The text of an id: `w00017`, with a full stop or a comma on some."""
    return f"w{number:05d}" + ("." if number % SENTENCE == 0 else "," if number % CLAUSE == 0 else "")


def build_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """A word tokenizer with ids 0 to `vocabulary` − 1, `</s>` appended: `decode` and `encode` invert each other."""
    words = [*SPECIALS.values(), *(f"▁{name}" for name in TEMPLATE_WORDS)]
    words += [f"▁{word(number)}" for number in range(FIRST_WORD, vocabulary)]
    core = Tokenizer(models.WordLevel({name: i for i, name in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    core.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", EOS)])
    # The spaces around a special token belong to it: "answer: </s> w00017" has no token of white space.
    core.add_special_tokens([AddedToken(name, lstrip=True, rstrip=True, special=True) for name in SPECIALS.values()])
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIALS, clean_up_tokenization_spaces=False)


def reward_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """The same vocabulary in the Longformer layout `<s> … </s>`."""
    tokenizer = build_tokenizer(vocabulary)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", CLS), ("</s>", EOS)]
    )
    tokenizer.sep_token, tokenizer.bos_token = "</s>", "<s>"
    return tokenizer


def make_prompts(tokenizer: Any, vocabulary: int, lengths: Sequence[int], seed: int) -> list[Prompt]:
    """One prompt of exactly each length in tokens: a question and four passages of random words."""
    prompts = []
    for number, length in enumerate(lengths):
        random = np.random.default_rng(stable_hash(seed, "prompt", number))
        drawn = iter([word(i) for i in random.integers(FIRST_WORD, vocabulary, length).tolist()])
        asked, passages = max(4, length // 32), 4 if length >= 64 else 1
        room = length - (asked + 3) - (5 * passages - 1)  # question: context: </s>; wikipage: two words text: and |
        question = " ".join(next(drawn) for _ in range(asked))
        cuts = [room // passages + (i < room % passages) for i in range(passages)]
        shown = tuple(
            Passage(" ".join(next(drawn) for _ in range(2)), " ".join(next(drawn) for _ in range(cut))) for cut in cuts
        )
        text = task_text(question, shown)
        ids = tuple(tokenizer(text).input_ids)
        if len(ids) != length:
            raise AssertionError(f"a prompt of {length} tokens was asked for, {len(ids)} were made")
        prompts.append(Prompt(f"prompt-{number}", text, ids, {"question": question, "passages": shown}))
    return prompts


def prompt_lengths(profile: Profile, lengths: str, count: int) -> list[int]:
    """Prompt lengths in tokens: all the longest (`fixed`), or evenly spread between half of it and it (`spread`)."""
    longest = profile.prompt_tokens
    if lengths == "fixed" or count == 1:
        return [longest] * count
    return [max(32, longest - i * (longest // 2) // (count - 1)) for i in range(count)]


def end_ids(profile: Profile, lengths: str) -> tuple[int, ...]:
    """The ids that end a response.

    `fixed`: `</s>` alone, which is never drawn, because its logit is about 0 (see `build_policy`) and the 20 highest
    of a random model's are far above. `spread`: one word in n, n being half the longest response, so that lengths are
    about geometric with mean n, cut at the limit (13% of responses reach it).
    """
    if lengths == "fixed":
        return (EOS,)
    every = profile.new_tokens // 2
    return tuple(range(FIRST_WORD + 1, profile.vocabulary, every))


def t5_config(shape: T5Shape, vocabulary: int) -> T5Config:
    """Configuration of a T5 of this shape, tied, without dropout."""
    return T5Config(
        vocab_size=vocabulary,
        d_model=shape.width,
        d_kv=shape.width // shape.heads,
        d_ff=shape.inner,
        num_layers=shape.layers,
        num_decoder_layers=shape.layers,
        num_heads=shape.heads,
        feed_forward_proj=shape.activation,
        tie_word_embeddings=True,
        dropout_rate=0.0,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
    )


@torch.no_grad()
def build_policy(shape: T5Shape, vocabulary: int, device: torch.device) -> T5ForConditionalGeneration:
    """A random T5 with a tied head that writes as a trained one does: varied words, no token for ever.

    With transformers' initialisation a tied T5 repeats the token it was given, and what its layers add hardly depends
    on that token. Here embeddings are as large as what all layers add, and the last norm, which gives the logits back
    their size (standard deviation about 1), has random signs: the next token is a function of the last one, not the
    same. Special tokens get embeddings of nearly 0, hence logits of nearly 0: they are never among the 20 highest.
    """
    with torch.device(device):
        model = T5ForConditionalGeneration(t5_config(shape, vocabulary))
        signs = torch.randint(0, 2, (shape.width,)) * 2.0 - 1.0
    scale = (2 * shape.layers) ** 0.5
    model.shared.weight.mul_(scale)
    model.shared.weight[:FIRST_WORD].mul_(SPECIAL_SCALE)
    model.decoder.final_layer_norm.weight.copy_(signs / scale)
    return model.eval()


def write_reward_model(shape: LongformerShape, vocabulary: int, kind: str, directory: Path) -> None:
    """Save a random reward model in the layout that scorers read."""
    config = LongformerConfig(
        vocab_size=vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        attention_window=[shape.window] * shape.layers,
        max_position_embeddings=shape.positions + PAD + 2,
        type_vocab_size=1,
        pad_token_id=PAD,
        bos_token_id=CLS,
        eos_token_id=EOS,
        sep_token_id=EOS,
        initializer_range=0.05,
        num_labels=2 if kind != "completeness" else 1,
    )
    if kind == "completeness":  # transformers gives a sequence classifier's first token global attention
        model = LongformerForSequenceClassification(config)
        record = RewardModelRecord(kind, "first", shape.positions, mean=0.0, std=1.0)
    else:
        config.id2label, config.label2id = ID2LABEL, {name: i for i, name in ID2LABEL.items()}
        model = LongformerForTokenClassification(config)
        record = RewardModelRecord(kind, "none", shape.positions)
    RewardModel(model, reward_tokenizer(vocabulary), record).save(directory)


class Workload:
    """All that both sides start from.

    Args:
        profile: sizes.
        directory: reward models are written here.

    Attributes:
        device: where both sides compute.
        tokenizer: of policy and value model.
        policy: random model of the profile's family; sides copy it.
        value: random backbone; sides copy it.
        value_head: random head; sides copy it.
        start: what an encoder–decoder's decoder begins with.
    """

    def __init__(self, profile: Profile, directory: Path) -> None:
        self.profile, self.directory = profile, directory
        self.device = torch.device(profile.device)
        self.tokenizer = build_tokenizer(profile.vocabulary)
        seed_everything(profile.seed, "weights")
        self.start = CLS if profile.family == "t5gemma" else PAD
        self.policy: Any
        self.value: Any
        if isinstance(profile.policy, CausalShape):
            self.policy = build_causal(self._config(profile.policy), self.device, FIRST_WORD)
            self.value = build_backbone(self._config(profile.value), self.device)
        elif profile.family == "t5gemma":
            self.policy = build_t5gemma(self._config(profile.policy), self.device, FIRST_WORD)
            self.value = build_backbone(self._config(profile.value), self.device)
        else:
            assert isinstance(profile.value, T5Shape)
            self.policy = build_policy(profile.policy, profile.vocabulary, self.device)
            with self.device:
                self.value = T5Model(t5_config(profile.value, profile.vocabulary)).eval()
        with self.device:
            self.value_head: nn.Module = ValueHead(profile.value.width)
        for name, kind in COMPONENTS.items():
            if not (directory / name / "config.json").is_file():
                write_reward_model(profile.reward, profile.vocabulary, kind, directory / name)

    def _config(self, shape: T5Shape | CausalShape) -> Any:
        """Configuration of a model of another family than T5, with room for prompt and response."""
        vocabulary, ids = self.profile.vocabulary, {"pad_token_id": PAD, "eos_token_id": EOS}
        if isinstance(shape, T5Shape):
            return t5gemma_config(shape, vocabulary, self.start, **ids)
        positions = 512 * -(-(self.profile.prompt_tokens + self.profile.new_tokens) // 512)
        return causal_config(shape, vocabulary, positions, **ids, bos_token_id=CLS)

    def prompts(self, lengths: str) -> list[Prompt]:
        """The prompts of all steps, none of which is used twice; every step's have the same lengths."""
        profile = self.profile
        sizes = prompt_lengths(profile, lengths, profile.prompts)
        places = range(profile.prompts * (profile.warmup + profile.rounds))
        ordered = [0] * len(places)
        for step in range(1, profile.warmup + profile.rounds + 1):
            for size, place in zip(sizes, items_of_step(places, step, profile.prompts, profile.seed), strict=True):
                ordered[place] = size
        return make_prompts(self.tokenizer, profile.vocabulary, ordered, profile.seed)
