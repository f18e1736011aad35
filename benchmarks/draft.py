"""What looking ahead in the prompt saves (`rollout.draft`): decoding of answers that copy it, with it and without.

Examples:
    python benchmarks/draft.py out=draft.json
    python benchmarks/draft.py precision=bf16 out=draft_bf16.json
    python benchmarks/draft.py profile=tiny
    python benchmarks/draft.py data=dev.json tokenizer=DIR      # no model: how far answers of people copy their prompts

Random models of the shapes of `ppo_step.py` decode on one thread, a script deciding each token: a share of its words
stands in pieces copied from the prompt, the others are random. Both sides in turn; the fastest of several rounds, in
processor time. See docs/benchmarks.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import read_arguments, run_main
from benchmarks.families import CausalShape, build_causal, causal_config
from benchmarks.machine import DTYPES, describe_machine
from benchmarks.profiles import Profile, choose_profile
from benchmarks.workload import CLS, EOS, FIRST_WORD, PAD, build_policy, build_tokenizer, make_prompts
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.records import Prompt, Sample
from finegrained_rlhf.models.from_disk import open_tokenizer
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.lookup import PromptLookup
from finegrained_rlhf.rollout.select import stepper_of
from finegrained_rlhf.rollout.steppers.base import Block
from finegrained_rlhf.text.tables import markdown_table

FAMILIES = ("t5", "llama")
SHARES = (0.0, 0.8, 0.9)
PIECE = 4
"""Mean length of a copied piece in tokens; lengths are geometric."""
ROWS = ((4, 4), (4, 1), (1, 1))
"""Prompts, and answers to each."""
DRAFTS = (8,)
KEYS = ("out", "profile", "rounds", "precision", "data", "tokenizer")


class ScriptedStepper:
    """A stepper that computes as ever, and whose logits then leave nothing but a script's token.

    Args:
        script: int64 [R, T].
        policy, memory, samples, max_new_tokens: as of an `OpenStepper`.

    Attributes:
        fed: tokens that have gone through the model.
        turns: steps, counted for each row that took part.
    """

    def __init__(self, script: Tensor, policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> None:
        opens = stepper_of(policy)
        assert opens is not None
        self._own: Any = opens(policy, memory, samples, max_new_tokens)
        self._script, self.first_tokens = script, self._own.first_tokens
        self.fed = self.turns = 0

    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Stepper.logits`."""
        self.turns += len(tokens)
        return self._only(self._own.logits(tokens, position, window), self._script[:, int(position)])

    def block(self, tokens: Tensor, block: Block) -> Tensor:
        """See `BlockStepper.block`."""
        self.turns += len(block.rows.unique())
        return self._only(self._own.block(tokens, block), self._script[block.rows, block.places])

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Stepper.keep`."""
        self._own.keep(prompts, rows)
        self._script, self.first_tokens = self._script[rows], self._own.first_tokens

    def _only(self, logits: Tensor, tokens: Tensor) -> Tensor:
        self.fed += len(tokens)
        return logits.scatter_(1, tokens[:, None], 1e4)


def opening(script: Tensor, opened: list[ScriptedStepper], *arguments: Any) -> ScriptedStepper:
    """An `OpenStepper` behind its first two arguments; what it opens is added to `opened`."""
    opened.append(ScriptedStepper(script, *arguments))
    return opened[-1]


def policy_of(profile: Profile) -> Policy:
    """A random policy of the profile's shape."""
    torch.manual_seed(profile.seed)
    tokenizer, device = build_tokenizer(profile.vocabulary), torch.device("cpu")
    if not isinstance(profile.policy, CausalShape):
        return Seq2SeqPolicy(build_policy(profile.policy, profile.vocabulary, device), tokenizer).eval()
    config = causal_config(
        profile.policy, profile.vocabulary, 1024, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=CLS
    )
    return CausalPolicy(build_causal(config, device, FIRST_WORD), tokenizer).eval()


def scripted(prompts: Sequence[Prompt], samples: int, length: int, share: float, profile: Profile) -> Tensor:
    """Answers int64 [P·N, T]: pieces of the prompt and random words between, so that `share` of all words is copied."""
    random = np.random.default_rng(profile.seed)
    rows = []
    for prompt in (prompt for prompt in prompts for _ in range(samples)):
        row: list[int] = []
        while len(row) < length:
            begin = int(random.integers(len(prompt.input_ids) - 1))
            piece = [token for token in prompt.input_ids[begin : begin + random.geometric(1 / PIECE)] if token != EOS]
            others = random.integers(FIRST_WORD, profile.vocabulary, round(PIECE * (1 - share) / max(share, 1 / PIECE)))
            row += [*(piece if share else ()), *others.tolist()]
        rows.append(row[:length])
    return torch.tensor(rows)


def measure(policy: Policy, profile: Profile, samples: int, share: float, rounds: int) -> list[dict[str, Any]]:
    """One line for each draft: processor seconds without and with it."""
    prompts = make_prompts(
        policy.tokenizer, profile.vocabulary, [profile.prompt_tokens] * profile.prompts, profile.seed
    )
    script = scripted(prompts, samples, profile.new_tokens, share, profile)
    decoding = Sample(samples, 0.7, 20)
    with torch.no_grad():
        memory = policy.encode(prompts)
    seconds: dict[int, list[float]] = {draft: [] for draft in (0, *DRAFTS)}
    steppers: dict[int, ScriptedStepper] = {}
    for number in range(rounds + 1):  # the first one warms up
        for draft in seconds:
            opened: list[ScriptedStepper] = []
            engine = FastEngine(policy, partial(opening, script, opened), draft)
            began = time.process_time()
            drawn = engine.decode(memory, [decoding], max_new_tokens=profile.new_tokens)
            if number:
                seconds[draft].append(time.process_time() - began)
            if not torch.equal(drawn.response_ids, script):
                raise ConfigError(f"draft={draft}: the answers are not the script's")
            steppers[draft] = opened[0]
    tokens, lines = script.numel(), []
    for draft in DRAFTS:
        one, other = min(seconds[0]), min(seconds[draft])
        line = {"family": profile.family, "rows": len(script), "copied": share, "draft": draft}
        line |= {"tokens a step": tokens / steppers[draft].turns, "fed a token": steppers[draft].fed / tokens}
        lines.append({**line, "without, s": one, "with, s": other, "without / with": one / other})
    return lines


def of_texts(data: str, tokenizer: str) -> list[dict[str, Any]]:
    """How many tokens a step the answers of people would give, and how many are fed for one, by draft.

    Args:
        data: JSON list of objects with `text` and `answer`, a text or a list of which the first is taken.
        tokenizer: directory of one that transformers reads.
    """
    encode = open_tokenizer(Path(tokenizer))
    texts = [
        (row["text"], row["answer"] if isinstance(row["answer"], str) else row["answer"][0]) for row in read_json(data)
    ]
    rows = [(encode(text).input_ids, encode(answer).input_ids) for text, answer in texts]
    lines = []
    for draft in (2, 4, 8, 16):
        steps = fed = 0
        for prompt, answer in rows:
            lookup, done = PromptLookup(prompt), 0
            while done < len(answer):
                ahead = lookup.draft(answer[:done], min(draft, len(answer) - done - 1))
                right = next((n for n, token in enumerate(ahead) if token != answer[done + n]), len(ahead))
                steps, fed, done = steps + 1, fed + 1 + len(ahead), done + 1 + right
        tokens = sum(len(answer) for _, answer in rows)
        lines.append(
            {"draft": draft, "answers": len(rows), "tokens a step": tokens / steps, "fed a token": fed / tokens}
        )
    return lines


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print the table, write the JSON file; returns the document.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, KEYS)
    rounds = given.get("rounds", "3")
    if not rounds.isdigit() or int(rounds) < 1 or ("data" in given) != ("tokenizer" in given):
        raise ConfigError("expected rounds=1 or more, and data=FILE and tokenizer=DIR together or neither")
    precision = given.get("precision", "fp32")
    if precision not in DTYPES:
        raise ConfigError(f"precision: expected one of {', '.join(DTYPES)}, got {precision!r}")
    torch.set_num_threads(1)
    document: dict[str, Any] = {"machine": describe_machine(torch.device("cpu"), precision)}
    if "data" in given:
        document["texts"] = lines = of_texts(given["data"], given["tokenizer"])
    else:
        lines = []
        for family in FAMILIES:
            profile = choose_profile({"profile": given.get("profile", "cpu"), "family": family})
            policy = policy_of(profile)
            for prompts, samples in ROWS:
                for share in SHARES:
                    with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
                        lines += measure(policy, replace(profile, prompts=prompts), samples, share, int(rounds))
        document |= {"profile": given.get("profile", "cpu"), "rounds": int(rounds), "piece": PIECE, "decoding": lines}
    print(markdown_table(lines, list(lines[0])))
    if "out" in given:
        write_json(given["out"], document)
    return document


if __name__ == "__main__":
    run_main(main)
