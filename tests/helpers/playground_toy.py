"""A directory with a run, its policy and its questions, and a rule-based reward that counts words and characters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from ppo_toy import LengthScorer, WordScorer

from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer
from finegrained_rlhf.rewards import RewardConfig

QUESTION = "which colours?"
ROW: dict[str, Any] = {"question": QUESTION, "passages": [["Colours", "red is one.", "blue is two."]]}
WORDS = "question: which colours? context: wikipage: Colours text: red is one. blue is two. <script>"


def make_run(directory: Path) -> Path:
    """A run named `run`, as training leaves it, with a tiny policy that writes words of `WORDS`."""
    run = directory / "run"
    tokenizer = build_tokenizer([WORDS])
    model = build_t5(tokenizer, TinyT5Config(d_model=32, d_ff=64, tied=False), seed=3)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    model.save_pretrained(run / "policy")
    tokenizer.save_pretrained(run / "policy")
    scorers = {name: {"_target_": "reward_models.SegmentScorer", "path": f"rm/{name}"} for name in ("words", "length")}
    config = {
        "policy": {"path": str(run / "policy")},
        "reward": {"_target_": "finegrained_rlhf.rewards.RewardConfig", "components": scorers},
        "rollout": {"max_new_tokens": 12},
        "validation_data": str(directory / "dev.jsonl"),
        "output_dir": str(run),
    }
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "metrics.jsonl").write_text("")
    write_jsonl(directory / "dev.jsonl", [ROW, {"question": "who saw it?", "passages": []}])
    return run


def reward(words: float = 1.0, length: float = 0.5, good: str = "red", **settings: Any) -> RewardConfig:
    """+1 for each good word, −0.2 for any other word; a tenth less for each character."""
    scorers = {"words": WordScorer(good), "length": LengthScorer()}
    return RewardConfig(scorers, {"words": words, "length": length}, **settings)
