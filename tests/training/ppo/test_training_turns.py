"""Responses in turns: what an environment says is read and never learnt, whatever trains on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_toy import save_chat_model, talk
from ppo_toy import WordScorer
from safetensors.torch import load_file

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.generation.outcomes import FailureBudgetError
from finegrained_rlhf.core.records import Experience, Prompt, Rollout, Sample, SegmentScores
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.rewards import BaseScorer, ComponentConfig, RewardComposer, RewardConfig
from finegrained_rlhf.rl.advantages import generalised_advantages
from finegrained_rlhf.rollout import RolloutConfig, ScriptedReplies, make_engine
from finegrained_rlhf.rollout.turns import in_turns
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.chat import ChatFormat, PromptConfig
from finegrained_rlhf.training.micro_batches import micro_batches
from finegrained_rlhf.training.ppo.advantages import GAE, AdvantageEstimator, GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.update import token_statistics

REPLIES = ["red blue", "the dog ran"]
ROWS = [
    {"id": name, "messages": talk(text), "replies": REPLIES}
    for name, text in (("a", "who ran far away"), ("b", "who sat"), ("c", "red"))
]


class Turn(BaseScorer):
    """One number a turn: the words that are `the`."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = [((0, len(text)),) for text in responses]
        return SegmentScores(spans, [(1.0 + text.count("the"),) for text in responses], whole_response=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A chat model that ends a turn after a few tokens: the head's row of the end is made large."""
    path = save_chat_model(tmp_path_factory.mktemp("chat"))
    policy = PolicyConfig(str(path)).load("cpu")
    with torch.no_grad():
        weight = policy.model.get_input_embeddings().weight
        end = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
        weight[end] = weight.mean(dim=0) + 0.6 * policy.model.transformer.ln_f.weight.sign() * weight.std() * 4
    policy.model.save_pretrained(path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_jsonl(tmp_path / "data.jsonl", ROWS)
    return str(tmp_path / "data.jsonl")


def opened(model: str, data: str) -> tuple[Any, list[Prompt]]:
    policy = PolicyConfig(model).load("cpu")
    return policy, prompts_for(policy, data, 64, "refuse", PromptConfig())


def drawn(model: str, data: str, n: int = 6, environment: Any = None, limit: int = 60) -> tuple[Any, Rollout]:
    policy, prompts = opened(model, data)
    engine = in_turns(make_engine(policy), policy, environment or ScriptedReplies(), prompts)
    return policy, engine.decode(engine.encode(prompts), [Sample(n)], max_new_tokens=limit, seed=5)


def test_a_response_in_turns_is_what_the_template_writes(model: str, data: str) -> None:
    """Token for token: the prompt and a response are the whole conversation by the template, up to its last turn."""
    policy, rollout = drawn(model, data)
    chat = ChatFormat(policy.tokenizer, policy.prompt)
    counts = [len(turns.tokens) for turns in rollout.turns]
    assert max(counts) == 3, counts
    for row, turns in enumerate(rollout.turns):
        ids = rollout.response_ids[row, : int(rollout.lengths()[row])].tolist()
        assert [message["content"] for message in turns.messages] == REPLIES[: len(turns.tokens) - 1]
        rebuilt: list[int] = []
        for number, (first, end) in enumerate(turns.tokens):
            assert len(rebuilt) == first and chat.end_id not in ids[first : end - 1]
            rebuilt += ids[first:end]
            if number + 1 < len(turns.tokens):
                rebuilt += chat.ids(f"\n<|im_start|>user\n{REPLIES[number]}<|im_end|>\n<|im_start|>assistant\n")
            begin, stop = turns.spans[number]
            words = policy.tokenizer.decode(ids[first:end], skip_special_tokens=True)
            assert rollout.texts[row][begin:stop].split() == words.split()
        assert rebuilt == ids
        assert rollout.written[row].sum() == sum(end - first for first, end in turns.tokens)
    assert bool((rollout.logprobs[rollout.written == 0] == 0).all())


def test_the_log_probabilities_are_those_of_the_whole_text_read_at_once(model: str, data: str) -> None:
    policy, rollout = drawn(model, data)
    for row, prompt in enumerate(rollout.row_prompts()):
        ids = rollout.response_ids[row, : int(rollout.lengths()[row])]
        whole = torch.cat([torch.tensor(prompt.input_ids), ids])[None]
        logits = policy.model(input_ids=whole).logits[0, len(prompt.input_ids) - 1 : -1].float()
        expected = logits.log_softmax(dim=1).gather(1, ids[:, None])[:, 0] * rollout.written[row, : len(ids)]
        torch.testing.assert_close(rollout.logprobs[row, : len(ids)], expected, atol=2e-5, rtol=0)


def test_a_draw_depends_on_names_and_not_on_its_company(model: str, data: str) -> None:
    policy, rollout = drawn(model, data)
    prompts = opened(model, data)[1]
    engine = in_turns(make_engine(policy), policy, ScriptedReplies(), prompts)
    alone = engine.decode(engine.encode(prompts[1:2]), [Sample(6)], max_new_tokens=60, seed=5)
    assert alone.texts == rollout.texts[6:12] and list(alone.turns) == list(rollout.turns[6:12])


def experience(rollout: Rollout, algorithm: AdvantageEstimator, config: PPOConfig, **changes: Any) -> Experience:
    reward = RewardComposer(RewardConfig({"words": WordScorer(), "turn": Turn()}, {"words": 1.0, "turn": 0.5}))
    scores = reward.score(rollout.row_prompts(), rollout.texts, rollout.turns)
    trace = reward.compose(rollout, scores, train=False)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(rollout.logprobs.shape, generator=generator) if algorithm.critic else None
    reference = (rollout.logprobs - 0.1) * rollout.written
    return make_experience(
        rollout, trace, reference, values, beta=0.1, config=config, reduce=lambda t: t, algorithm=algorithm, **changes
    )


def test_turn_rewards_stand_at_the_ends_of_turns(model: str, data: str) -> None:
    _, rollout = drawn(model, data)
    trace = experience(rollout, GroupAdvantages(), PPOConfig()).trace
    for row, turns in enumerate(rollout.turns):
        assert trace.components["turn"].tokens[row] == tuple(end - 1 for _, end in turns.tokens)
        placed = trace.total[row].nonzero().flatten().tolist()
        assert all(rollout.written[row, token] for token in placed)


def test_values_reach_over_what_the_environment_says(model: str, data: str) -> None:
    """GAE over the policy's tokens alone, row by row; nothing stands on the environment's."""
    _, rollout = drawn(model, data)
    config = PPOConfig(whiten_rewards=False, whiten_advantages=False, kl=KLConfig(place="loss"))
    made = experience(rollout, GAE(), config)
    values = torch.randn(rollout.logprobs.shape, generator=torch.Generator().manual_seed(1))
    for row in range(len(rollout.texts)):
        own = rollout.written[row].bool()
        ones = torch.ones(1, int(own.sum()), dtype=torch.long)
        advantages, returns = generalised_advantages(
            made.trace.total[row, own][None], values[row, own][None], ones, discount=1.0, lambda_=0.95
        )
        torch.testing.assert_close(made.advantages[row, own], advantages[0])
        assert made.returns is not None
        torch.testing.assert_close(made.returns[row, own], returns[0])
        assert not made.advantages[row, ~own].any() and not made.returns[row, ~own].any()


@pytest.mark.parametrize(
    "algorithm",
    [GroupAdvantages(), GroupAdvantages(credit="returns"), GroupAdvantages("group_mean", "std", whiten=True), GAE()],
)
def test_the_shares_add_up_and_are_the_policys_alone(model: str, data: str, algorithm: AdvantageEstimator) -> None:
    _, rollout = drawn(model, data)
    made = experience(rollout, algorithm, PPOConfig())
    torch.testing.assert_close(sum(made.shares.values()), made.advantages)
    assert not made.advantages[rollout.written == 0].any() and made.advantages.any()
    assert torch.equal(made.mask, rollout.written)


@pytest.mark.parametrize("average", ["token", "sequence", "constant"])
def test_the_gradient_is_that_of_an_independent_calculation(model: str, data: str, average: str) -> None:
    """Row by row by the model's own forward pass; other advantages at the environment's tokens change nothing."""
    policy, rollout = drawn(model, data, n=2)
    config = PPOConfig(epochs=1, loss_average=average, micro_batch_prompts=2, kl=KLConfig(place="loss"))  # type: ignore
    made = experience(rollout, GroupAdvantages(), config)

    def gradient(given: Experience) -> torch.Tensor:
        from finegrained_rlhf.training.ppo.update import PPOUpdate

        policy.zero_grad()
        seen: list[torch.Tensor] = []

        class Optimizer:
            def sum_gradients(self) -> None:
                seen.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))

            def step(self, step: int) -> float:
                return 0.0

        processes = Processes()
        update = PPOUpdate(policy, None, Optimizer(), processes, config, longest=60)  # type: ignore[arg-type]
        update.run(1, given, micro_batches(given.rollout, 2), StepMetrics(), beta=0.0)
        return seen[0].clone()

    ours = gradient(made)
    policy.zero_grad()
    total = torch.zeros(())
    tokens = float(rollout.written.sum())
    for row, prompt in enumerate(rollout.row_prompts()):
        ids = rollout.response_ids[row, : int(rollout.lengths()[row])]
        own = rollout.written[row, : len(ids)]
        whole = torch.cat([torch.tensor(prompt.input_ids), ids])[None]
        logits = policy.model(input_ids=whole).logits[0, len(prompt.input_ids) - 1 : -1].float()
        logprobs = logits.log_softmax(dim=1).gather(1, ids[:, None])[:, 0]
        ratio = (logprobs - rollout.logprobs[row, : len(ids)]).exp()
        losses = -ratio * made.advantages[row, : len(ids)] * own
        divisor = {"token": tokens, "sequence": float(own.sum()) * 6, "constant": 60.0 * 6}[average]
        total = total + losses.sum() / divisor
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    torch.testing.assert_close(ours, expected, atol=2e-6, rtol=1e-4)
    other = torch.where(rollout.written == 0, 100.0, made.advantages)
    assert torch.equal(gradient(replace(made, advantages=other)), ours)


def test_entropy_and_values_are_of_the_policys_tokens(model: str, data: str) -> None:
    policy, rollout = drawn(model, data, n=2)
    (batch,) = micro_batches(rollout, 3)
    said = token_statistics(policy, None, batch, entropy=True)
    others = rollout.written[batch.rows][:, : batch.ids.shape[1]] == 0
    assert others.any() and not said.entropy[others].any() and not said.logprobs[others].any()


class Broken(ScriptedReplies):
    """Breaks at one prompt."""

    def __init__(self, at: str = "") -> None:
        super().__init__()
        self.at = at

    def reply(self, prompt: Prompt, turns: Sequence[str], seed: int) -> str | None:
        if self.at in prompt.id:
            raise KeyError("no such tool")
        return super().reply(prompt, turns, seed)


def test_an_environment_that_breaks_is_an_outcome(model: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FailureBudgetError, match=r"environment=0.1: Broken gave no reply .* KeyError: 'no such tool'"):
        drawn(model, data, environment=Broken())
    monkeypatch.setattr("finegrained_rlhf.rollout.turns._FAILURES", 0.9)
    _, rollout = drawn(model, data, environment=Broken("a"))
    failed = [row for row, turns in enumerate(rollout.turns) if turns.failed]
    assert failed and all(rollout.row_prompts()[row].id == "a" for row in failed)
    made = experience(rollout, GroupAdvantages(), PPOConfig())
    assert made.learnt is not None and not made.learnt[failed].any() and not made.advantages[failed].any()


def test_what_cannot_hold_a_conversation_is_refused(model: str, data: str, tmp_path: Path) -> None:
    policy, prompts = opened(model, data)
    engine = make_engine(policy)
    with pytest.raises(DataError, match="record x: is a text, and an environment replies to messages"):
        in_turns(engine, policy, ScriptedReplies(), [Prompt("x", "who", (5,))])
    with pytest.raises(ConfigError, match="environment: .*refuses this conversation: no tools here"):
        in_turns(engine, policy, ScriptedReplies("tool"), prompts)
    policy.tokenizer.chat_template = None
    policy.prompt = PromptConfig()
    with pytest.raises(ConfigError, match="environment: the policy's tokenizer has no chat template"):
        in_turns(engine, policy, ScriptedReplies(), prompts)
    assert read_prompt_file(data)[0].metadata["replies"] == tuple(REPLIES)


def run(
    model: str, data: str, out: Path, algorithm: AdvantageEstimator, value: str, steps: int = 2, lora: bool = False
) -> dict[str, torch.Tensor]:
    TrainPPO(
        data=data,
        validation_data=data,
        policy=PolicyConfig(model, lora=LoraConfig(rank=2) if lora else None),
        value=ValueConfig(value, model if value == "separate" else None),  # type: ignore[arg-type]
        reward=RewardConfig(
            {"words": WordScorer(), "turn": Turn()}, {"words": 1.0, "turn": 0.5}, {"words": ComponentConfig()}
        ),
        rollout=RolloutConfig(3, 3, max_new_tokens=50, top_k=0, temperature=1.0),
        ppo=PPOConfig(epochs=2),
        optimizer=OptimizerConfig(lr=1e-3),
        algorithm=algorithm,
        total_steps=steps,
        output_dir=str(out),
        max_prompt_tokens=64,
        checkpoint_every=1,
        validate_every=1,
        samples_every=1,
        processes=ProcessConfig(precision="fp32"),
        environment=ScriptedReplies(),
    ).run()
    return load_file(out / "policy/model.safetensors")


@pytest.mark.parametrize(
    ("algorithm", "value", "lora"),
    [
        (GroupAdvantages("group_mean", "std"), "none", True),
        pytest.param(GroupAdvantages(credit="returns"), "none", False, marks=pytest.mark.slow),
        (GAE(), "shared", False),
        pytest.param(GAE(), "separate", False, marks=pytest.mark.slow),
    ],
)
def test_a_run_in_turns_resumes_to_the_bit(
    model: str, data: str, tmp_path: Path, algorithm: AdvantageEstimator, value: str, lora: bool
) -> None:
    whole = run(model, data, tmp_path / "whole", algorithm, value, 2, lora)
    run(model, data, tmp_path / "parts", algorithm, value, 1, lora)
    resumed = run(model, data, tmp_path / "parts", algorithm, value, 2, lora)
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
    metrics = read_jsonl(tmp_path / "whole/metrics.jsonl")
    assert all(row["turns"] > 1 and row["outcome/environment/failed"] == 0 and row["alignment"] == 1 for row in metrics)
