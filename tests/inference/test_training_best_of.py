"""Best of n: the sample with the highest reward, which is exactly what PPO would compute."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import LengthScorer, WordScorer
from rl_toy import policy, prompts

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_jsonl
from finegrained_rlhf.core.records import Greedy, Prompt, Sample, SegmentScores
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.inference.best_of import TIE, BestOf, Choice, best_sample
from finegrained_rlhf.inference.config import DecodingConfig, sampling
from finegrained_rlhf.inference.generator import PolicyGenerator, Response
from finegrained_rlhf.inference.jobs import Evaluate, Generate
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer
from finegrained_rlhf.rewards import BaseScorer, ComponentConfig, RewardComposer, RewardConfig
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.runtime.processes import Processes

PROMPT = Prompt("a", "which colours?", ())
MEAN = ComponentConfig(aggregation="mean")


def reward(settings: dict[str, ComponentConfig] | None = None, words: float = 1.0) -> RewardConfig:
    return RewardConfig(
        {"words": WordScorer(), "length": LengthScorer()}, {"words": words, "length": 0.5}, settings or {}
    )


def choose(texts: Sequence[str], config: RewardConfig | None = None) -> Choice:
    group = [Response(text, len(text.split()), True) for text in texts]
    (choice,) = BestOf(RewardComposer(config or reward()), Processes()).choose([PROMPT], [group])
    return choice


# Which sample ----------------------------------------------------------------------------------------------------


def test_totals_and_segments_by_hand() -> None:
    # words: +1 for red, −0.2 for any other; length: −0.1 a character, weight 0.5
    choice = choose(["blue", "red one", "red"])
    assert choice.totals == pytest.approx((-0.2 - 0.2, 0.8 - 0.35, 1.0 - 0.15))
    assert (choice.sample, choice.response.text, choice.total) == (2, "red", choice.totals[2])
    assert [(s.component, s.start, s.end) for s in choice.segments] == [("words", 0, 3), ("length", 0, 3)]
    assert [s.raw for s in choice.segments] == pytest.approx([1.0, -0.3])
    assert [s.weighted for s in choice.segments] == pytest.approx([1.0, -0.15])


def test_weights_decide() -> None:
    texts = ["red red and so on", "on"]
    assert choose(texts, reward(words=1.0)).response.text == "red red and so on"  # 1.4 − 0.85 against −0.2 − 0.1
    assert choose(texts, reward(words=0.1)).response.text == "on"  # 0.14 − 0.85 against −0.02 − 0.1


def test_aggregation_decides() -> None:
    texts = ["red red red one", "red"]
    assert choose(texts, reward(words=2.0)).sample == 0  # 5.6 − 0.75 against 2 − 0.15
    mean = choose(texts, reward({"words": MEAN}, words=2.0))
    assert mean.sample == 1 and mean.totals == pytest.approx((2 * 2.8 / 4 - 0.75, 2 - 0.15))
    budget = choose(texts, reward({"words": ComponentConfig(aggregation="budget", budget=3.0)}))
    assert budget.totals == pytest.approx((3 * 2.8 / 3.2 - 0.75, 3 - 0.15))


def test_of_equal_totals_the_first_is_taken() -> None:
    assert best_sample([1.0, 2.0, 2.0]) == 1
    assert best_sample([2.0, 2.0 + TIE / 2, 1.0]) == 0 and best_sample([2.0, 2.0 + 2 * TIE, 1.0]) == 1
    assert best_sample([None, 1.0, None, 2.0]) == 3 and best_sample([None, None]) == 0  # None: the reward is not known
    assert choose(["one", "red", "red"]).sample == 1
    assert choose(["one two", "two one"]).sample == 0
    with pytest.raises(ValueError, match="empty"):
        best_sample([])


class Silent(BaseScorer):
    """Has no score of a response that begins with `red`."""

    def score(self, prompts: Any, responses: Any) -> SegmentScores:
        odd = frozenset(row for row, text in enumerate(responses) if text.startswith("red"))
        spans = [() if row in odd else ((0, len(text)),) for row, text in enumerate(responses)]
        return SegmentScores(spans, [(1.0,) * len(row) for row in spans], unscored=odd)


def test_a_sample_whose_reward_is_not_known_is_not_preferred() -> None:
    silent = RewardConfig({"silent": Silent(), "words": WordScorer()}, {"silent": 1.0, "words": 1.0})
    chosen = choose(["red red red", "one", "two red"], silent)
    assert chosen.sample == 2 and chosen.totals[0] is None and chosen.total == pytest.approx(1.8)
    none = choose(["red", "red red"], silent)
    assert none.sample == 0 and none.total is None


class Noisy(BaseScorer):
    """A scorer whose numbers depend a little on their place in the batch, as a padded model's do."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        self.seen += responses
        values = [(len(text) + 1e-3 * place,) for place, text in enumerate(responses)]
        return SegmentScores([((0, len(text)),) for text in responses], values, whole_response=True)


def test_equal_texts_of_a_prompt_are_scored_once() -> None:
    scorer = Noisy()
    choice = choose(["red", "red", "on", "red"], RewardConfig({"noisy": scorer}, {"noisy": 1.0}))
    assert scorer.seen == ["red", "on"] and choice.sample == 0
    assert choice.totals[0] == choice.totals[1] == choice.totals[3]


def test_prompts_are_scored_in_parts_and_keep_their_order() -> None:
    asked = [Prompt(f"p{i}", "", ()) for i in range(100)]
    groups = [[Response("one", 1, True), Response("red", 1, True), Response(f"w{i}", 1, True)] for i in range(100)]
    chosen = BestOf(RewardComposer(reward()), Processes()).choose(asked, groups)
    assert [choice.sample for choice in chosen] == [1] * 100
    assert BestOf(RewardComposer(reward()), Processes()).choose([], []) == []


def test_the_total_is_what_ppo_would_compute() -> None:
    """The trained reward, placed on tokens and summed over them, for every aggregation."""
    engine = make_engine(policy())
    for settings in ({}, {"words": MEAN}, {"words": ComponentConfig("none", "budget", 2.0, "response")}):
        composer = RewardComposer(reward(settings, words=0.7))
        rollout = engine.decode(engine.encode(prompts()), [Sample(5)], max_new_tokens=8, seed=3)
        scores = composer.score(rollout.row_prompts(), rollout.texts)
        trained = composer.compose(rollout, scores).total.sum(dim=1).reshape(3, 5)
        groups = next(iter(PolicyGenerator(policy()).stream(prompts(), Sample(5), max_new_tokens=8, seed=3)))
        chosen = BestOf(composer, Processes()).choose(prompts(), groups)
        torch.testing.assert_close(torch.tensor([choice.totals for choice in chosen]), trained)
        assert [choice.total for choice in chosen] == pytest.approx(trained.max(dim=1).values.tolist(), abs=1e-5)


def test_running_moments_are_refused_before_anything_is_scored() -> None:
    class Untouched(WordScorer):
        def setup(self, device: torch.device) -> None:
            raise AssertionError

    config = RewardConfig({"words": Untouched()}, {"words": 1.0}, {"words": ComponentConfig("running")})
    with pytest.raises(ConfigError, match=r"reward.settings.words.normalisation: running moments"):
        BestOf(RewardComposer(config), Processes())


# How samples are drawn -------------------------------------------------------------------------------------------


def test_greedy_decoding_becomes_that_of_training_and_other_decoding_is_kept() -> None:
    assert sampling(DecodingConfig(), 1) == Greedy()
    assert sampling(DecodingConfig(), 8) == Sample(8, 0.7, 20, 1.0)
    assert sampling(DecodingConfig(1, 1.2, 0, 0.9), 8) == Sample(8, 1.2, 0, 0.9)
    assert sampling(DecodingConfig(3, 1.2), 1) == Sample(3, 1.2)
    with pytest.raises(ConfigError, match="best_of must be at least 1"):
        sampling(DecodingConfig(), 0)
    with pytest.raises(ConfigError, match="leave decoding.n at 1"):
        sampling(DecodingConfig(2, 1.0), 4)


# The jobs --------------------------------------------------------------------------------------------------------

EXAMPLES = [QAExample(p.id, f"{p.id}?", p.text, ("red",), ()) for p in prompts(count=4)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    tokenizer = build_tokenizer([f"{example.text} red blue on" for example in EXAMPLES])
    build_t5(tokenizer, TinyT5Config(32, 64, tied=False), seed=1).save_pretrained(path / "policy")
    tokenizer.save_pretrained(path / "policy")
    (path / "config.yaml").write_text("seed: 0\n")
    write_examples(path / "data.json", EXAMPLES)
    return path


def generate(run: Path, output: Path, **settings: Any) -> list[dict[str, Any]]:
    settings = {"reward": reward(), "best_of": 6, "max_new_tokens": 6, **settings}
    Generate(str(run), str(run / "data.json"), str(output), **settings).run()
    return read_jsonl(output)


def test_generate_writes_the_best_with_its_rewards(run: Path, tmp_path: Path) -> None:
    best = generate(run, tmp_path / "best.jsonl", decoding=DecodingConfig(1, 1.5))
    every = generate(run, tmp_path / "all.jsonl", decoding=DecodingConfig(6, 1.5), best_of=1)
    samples = {(row["id"], row["sample"]): row["response"] for row in every}
    assert [row["id"] for row in best] == [example.id for example in EXAMPLES]
    for row in best:
        assert row["response"] == samples[row["id"], row["sample"]]
        assert row["total"] == max(row["totals"]) == row["totals"][row["sample"]] and len(row["totals"]) == 6
        assert sum(segment["weighted"] for segment in row["segments"]) == pytest.approx(row["total"], abs=1e-5)
        told = choose([samples[row["id"], k] for k in range(6)])
        assert row["totals"] == pytest.approx(told.totals, abs=1e-6) and row["sample"] == told.sample
    assert len({row["sample"] for row in best}) > 1


def test_the_choice_depends_on_the_seed_alone(run: Path, tmp_path: Path) -> None:
    first = generate(run, tmp_path / "a.jsonl", decoding=DecodingConfig(1, 1.5))
    assert generate(run, tmp_path / "b.jsonl", decoding=DecodingConfig(1, 1.5), batch_size=1) == first
    assert generate(run, tmp_path / "c.jsonl", decoding=DecodingConfig(1, 1.5), seed=1) != first
    more = generate(run, tmp_path / "d.jsonl", decoding=DecodingConfig(1, 1.5), best_of=9)
    assert [row["totals"][:6] for row in more] == [row["totals"] for row in first]


def test_best_of_one_is_what_generate_does_without(run: Path, tmp_path: Path) -> None:
    assert generate(run, tmp_path / "a.jsonl", best_of=1) == generate(run, tmp_path / "b.jsonl", best_of=1, reward=None)
    assert set(read_jsonl(tmp_path / "a.jsonl")[0]) == {"id", "prompt", "response"}


def test_scorers_see_question_and_passages_of_json_lines(run: Path, tmp_path: Path) -> None:
    class Asked(WordScorer):
        def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
            seen.extend(prompt.metadata for prompt in prompts)
            return super().score(prompts, responses)

    seen: list[Any] = []
    write_jsonl(tmp_path / "in.jsonl", [{"id": "a", "text": "red", "question": "Who?", "passages": []}])
    config = RewardConfig({"asked": Asked()}, {"asked": 1.0})
    output = tmp_path / "out.jsonl"
    Generate(str(run), str(tmp_path / "in.jsonl"), str(output), best_of=2, reward=config, max_new_tokens=3).run()
    assert seen and all(found == {"question": "Who?", "passages": ()} for found in seen)


def test_a_reward_is_needed_and_a_half_given_one_refused(run: Path, tmp_path: Path) -> None:
    for half, message in ((None, "best_of needs a reward"), ({"weights": {"words": 1.0}}, "name one first")):
        with pytest.raises(ConfigError, match=message):
            generate(run, tmp_path / "a.jsonl", reward=half)
        with pytest.raises(ConfigError, match=message):
            Evaluate(str(run / "data.json"), str(tmp_path / "b.json"), str(run), reward=half, best_of=2).run()  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_an_evaluation_measures_the_chosen_ones(run: Path, tmp_path: Path) -> None:
    decoding = DecodingConfig(1, 1.5)
    chosen = generate(run, tmp_path / "best.jsonl", decoding=decoding)
    settings: dict[str, Any] = {"max_new_tokens": 6, "decoding": decoding, "reward": reward()}
    data = str(run / "data.json")
    best = Evaluate(data, str(tmp_path / "a.json"), str(run), best_of=6, **settings).run()
    first = Evaluate(data, str(tmp_path / "b.json"), str(run), **settings).run()
    assert [row.response for row in best.responses] == [row["response"] for row in chosen]
    assert best.metrics["reward/total"] == pytest.approx(sum(row["total"] for row in chosen) / 4, abs=1e-5)
    assert best.metrics["reward/total"] > first.metrics["reward/total"]
    report = read_json(tmp_path / "a.json")
    drawn = {"best_of": 6, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": 0}
    assert {key: report[key] for key in drawn} == drawn
    outputs = read_outputs(tmp_path / "a.outputs.jsonl")
    assert [record.outputs for record in outputs] == [(row["response"],) for row in chosen]
    assert not (run / "metrics.json").exists()  # the file is of the run's greedy answers


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(ConfigError, match="best_of and decoding are for checkpoint"):
        Evaluate("a", "b", outputs="c", best_of=2)
    with pytest.raises(ConfigError, match="leave decoding.n at 1"):
        Evaluate("a", "b", "c", decoding=DecodingConfig(2, 1.0))
    with pytest.raises(ConfigError, match="best_of must be at least 1"):
        Evaluate("a", "b", "c", best_of=0)
    with pytest.raises(ConfigError, match="best_of must be at least 1"):
        Generate("a", "b", "c", best_of=0)
