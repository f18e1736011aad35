"""What single deviations change in tokens: segment ends, separators, the template's bar, batches (see DEVIATIONS.md).

Example: python benchmarks/deviations_tokens.py ../shared/data/qa_feedback/dev_feedback.json

Reads a feedback file, builds small tokenizers from its texts and takes the project's rule and the original's on the
same records. No model is read or trained. About two minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.deviations_ends import total_drift
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.models.tiny_networks import SPECIALS, build_tokenizer, encoder_tokenizer
from finegrained_rlhf.text.segmentation import Segmenter, SpacySegmenter
from reward_models.data.examples import BatchPlan, LabelSettings, RewardExample, build_examples
from reward_models.encoders.inputs import RewardInputEncoder
from reward_models.kinds import kind_named
from reward_models.parts import InputParts, answer_parts, factuality_parts, relevance_parts

VOCABULARY, MAX_LENGTH = 8000, 2048
SHARE_CUT = 0.01
"""Of the tokens of an answer, cut into two other tokens as a policy that samples may do."""
BATCHES: tuple[tuple[str, int], ...] = (
    ("relevance", 24),
    ("factuality", 24),
    ("completeness", 12),
    ("preference", 12),
)


def t5_like(corpus: Sequence[str]) -> PreTrainedTokenizerFast:
    """A Unigram tokenizer laid out as T5's: white space is squeezed, `▁` stands before each word, `</s>` at the end."""
    core = Tokenizer(models.Unigram())
    core.normalizer = normalizers.NFKC()
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    core.decoder = decoders.Metaspace()
    unknown = SPECIALS["unk_token"]
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIALS.values()), unk_token=unknown, show_progress=False
    )
    core.train_from_iterator(corpus, trainer)
    core.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, **SPECIALS, clean_up_tokenization_spaces=False)


def cut_otherwise(tokenizer: Any, ids: Sequence[int], noise: random.Random) -> list[int]:
    """The ids with `SHARE_CUT` of those tokens cut in two that can be: the text is the same."""
    vocabulary, changed = tokenizer.get_vocab(), list[int]()
    for token_id in ids:
        token = tokenizer.convert_ids_to_tokens(token_id)
        places = [k for k in range(1, len(token)) if token[:k] in vocabulary and token[k:] in vocabulary]
        if places and noise.random() < SHARE_CUT and token_id not in tokenizer.all_special_ids:
            place = noise.choice(places)
            changed += [vocabulary[token[:place]], vocabulary[token[place:]]]
        else:
            changed.append(token_id)
    return changed


def segment_ends(answers: Sequence[str], tokenizers: Mapping[str, Any]) -> dict[str, str]:
    """Drift of the segment ends in real answers, with ids as tokenised and with some of them cut otherwise."""
    lines = {}
    for name, tokenizer in tokenizers.items():
        rows, noise = tokenizer(list(answers)).input_ids, random.Random(0)
        lines[f"ends, {name}"] = str(total_drift(tokenizer, rows))
        rows = [cut_otherwise(tokenizer, row, noise) for row in rows]
        lines[f"ends, {name}, {SHARE_CUT:.0%} cut"] = str(total_drift(tokenizer, rows))
    return lines


def one_call(records: Sequence[FeedbackRecord], tokenizer: Any, segmenter: Segmenter) -> str:
    """Ids of relevance and factuality inputs, piece by piece and by one call over the words."""
    spaced = copy.deepcopy(tokenizer)  # the original's tokenizer puts a space before each word, the first one too
    spaced.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    encoder = RewardInputEncoder(tokenizer, 10**6)
    parts: list[InputParts] = []
    for record in records:
        text = record.predictions[0]
        subs, whole = ([text[a:b] for a, b in cut(text)] for cut in (segmenter.sub_sentences, segmenter.sentences))
        parts += [relevance_parts(record.question, subs), factuality_parts(record.question, record.passages, whole)]
    differ = beyond = lost = 0
    for item, ours in zip(parts, encoder.encode(parts), strict=True):
        words = [word for text in (item.before, item.context, item.after) for word in text.split()]
        for segment in item.segments:
            words += ["</s>", *segment.split()]
        theirs = spaced(words, is_split_into_words=True).input_ids
        first = [1 + len(each(words[0], add_special_tokens=False).input_ids) for each in (tokenizer, spaced)]
        differ += list(ours.ids) != theirs
        beyond += list(ours.ids[first[0] :]) != theirs[first[1] :]
        lost += theirs[:-1].count(encoder.sep_id) != len(item.segments)
    return (
        f"{differ} of {len(parts)} inputs differ, {beyond} beyond their first word; "
        f"{lost} with a separator lost or found by accident"
    )


def template(records: Sequence[FeedbackRecord], tokenizer: Any) -> str:
    """Inputs of the completeness model with and without the bar between passages."""
    encoder = RewardInputEncoder(tokenizer, 10**6)
    differ = bars = tokens = 0
    for record in records:
        parts = answer_parts(record.question, record.passages, record.predictions[0])
        bare = InputParts(parts.before, parts.context.replace(" | wikipage:", " wikipage:"), parts.after)
        ours, theirs = (len(item.ids) for item in encoder.encode([parts, bare]))
        differ, bars, tokens = differ + (ours != theirs), bars + ours - theirs, tokens + ours
    count = len(records)
    return f"{differ} of {count} inputs differ, by {bars / count:.1f} of {tokens / count:.0f} tokens on average"


def padded_share(batches: Sequence[Sequence[RewardExample]]) -> float:
    """Share of padding in batches that are padded to their longest input."""
    lengths = [[len(item.ids) for example in batch for item in example.inputs] for batch in batches]
    return 1 - sum(map(sum, lengths)) / sum(max(row) * len(row) for row in lengths)


def batching(records: Sequence[FeedbackRecord], tokenizer: Any, segmenter: Segmenter) -> dict[str, str]:
    """Padding and encoded answers of an epoch: pairs and inputs shuffled, and in this project's batches."""
    lines = {}
    for kind, size in BATCHES:
        examples = build_examples(
            records, LabelSettings(kind_named(kind)), RewardInputEncoder(tokenizer, MAX_LENGTH), segmenter
        )
        pairs = [RewardExample((e.inputs[i], e.inputs[j]), pairs=((0, 1),)) for e in examples for i, j in e.pairs]
        single = pairs or list(examples)
        random.Random(0).shuffle(single)
        shuffled = [single[start : start + size] for start in range(0, len(single), size)]
        plan = BatchPlan(examples, size, 0)
        ours = [plan.batch(step) for step in range(1, plan.steps(1) + 1)]
        encoded = [sum(len(e.inputs) for batch in batches for e in batch) for batches in (shuffled, ours)]
        lines[f"batches, {kind}"] = (
            f"{len(ours)} of at most {size}: padding {padded_share(shuffled):.1%} shuffled, {padded_share(ours):.1%} "
            f"here; inputs encoded an epoch {encoded[0]} and {encoded[1]}"
        )
    return lines


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("feedback", type=Path, help="a QA-FEEDBACK feedback file")
    records, segmenter = read_feedback(parser.parse_args().feedback), SpacySegmenter("rules")
    answers = [answer for record in records for answer in record.predictions]
    corpus = [*answers, *(text for record in records for p in record.passages for text in p.sentences)]
    bpe = build_tokenizer(corpus, "bpe", VOCABULARY)
    encoder_bpe = encoder_tokenizer(bpe, 10**6)
    lines = {
        **segment_ends(answers, {"unigram": t5_like(corpus), "bpe": bpe}),
        "one call": one_call(records, encoder_bpe, segmenter),
        "template": template(records, encoder_bpe),
        **batching(records, encoder_bpe, segmenter),
    }
    for name, line in lines.items():
        print(f"{name:24} {line}")


if __name__ == "__main__":
    main()
