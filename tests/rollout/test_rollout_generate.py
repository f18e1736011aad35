"""The generate-backed engine: against transformers' generate, by the distribution it draws from, and by what it must
not depend on."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from rl_toy import ARCHITECTURES, model, policy, prompts, tokenizer
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Greedy, Prompt, Rollout, Sample
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.rollout import GenerateEngine, make_engine, select
from finegrained_rlhf.rollout.assembly import join_rollouts
from finegrained_rlhf.rollout.engine import rollout_in_batches

SAMPLE = Sample(3, temperature=1.3)


def roll(
    kind_or_policy: str | Policy, asked: list[Prompt], *decodings: Greedy | Sample, tokens: int = 8, **names: int
) -> Rollout:
    ours = policy(kind_or_policy) if isinstance(kind_or_policy, str) else kind_or_policy
    engine = GenerateEngine(ours)
    return engine.decode(engine.encode(asked), list(decodings), max_new_tokens=tokens, **names)


def responses_by_name(rollout: Rollout) -> dict[tuple[str, int, int], tuple[int, ...]]:
    """Response ids by (prompt id, decoding, sample)."""
    named = {}
    for row, prompt in enumerate(rollout.row_prompts()):
        ids = rollout.response_ids[row][rollout.response_mask[row].bool()]
        named[prompt.id, int(rollout.decoding_index[row]), int(rollout.sample_index[row])] = tuple(ids.tolist())
    return named


def favour(ours: Policy, token: int, by: float) -> Policy:
    """Add `by` to the logit of one token, whatever the state."""
    head = ours.model.lm_head

    def hook(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        return output.index_add(-1, torch.tensor([token]), torch.full_like(output[..., :1], by))

    head.register_forward_hook(hook)
    return ours


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_equals_transformers_token_for_token(kind: str) -> None:
    asked = prompts(kind, 5)
    rollout = roll(kind, asked, Greedy(), tokens=12)
    assert torch.equal(rollout.prompt_index, torch.arange(5))
    plain = model(kind)
    for row, prompt in enumerate(asked):  # one at a time, so without padding
        ids = torch.tensor([prompt.input_ids])
        theirs = plain.generate(input_ids=ids, max_new_tokens=12, do_sample=False, num_beams=1)[0]
        theirs = theirs[1:] if kind != "gpt2" else theirs[len(prompt.input_ids) :]
        length = int(rollout.response_mask[row].sum())
        assert rollout.response_ids[row, :length].tolist() == theirs.tolist()[:length]
        assert length == len(theirs)
    assert len({tuple(r) for r in rollout.response_ids.tolist()}) > 1


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logprobs_are_those_of_the_plain_softmax(kind: str) -> None:
    asked = prompts(kind)
    rollout = roll(kind, asked, Sample(2, temperature=2.0, top_k=10), Greedy())
    plain = model(kind)
    for row, prompt in enumerate(rollout.row_prompts()):
        length = int(rollout.response_mask[row].sum())
        ids, answer = torch.tensor([prompt.input_ids]), rollout.response_ids[row : row + 1, :length]
        with torch.no_grad():
            if kind == "gpt2":
                logits = plain(input_ids=torch.cat([ids, answer], dim=1)).logits[0, len(prompt.input_ids) - 1 : -1]
            else:
                logits = plain(input_ids=ids, labels=answer).logits[0]
        expected = logits.log_softmax(dim=-1).gather(-1, answer[0].unsqueeze(-1)).squeeze(-1)
        scale = max(1.0, float(logits.abs().max()))  # a log-probability is a difference of logits, rounded like them
        torch.testing.assert_close(rollout.logprobs[row, :length] / scale, expected / scale, atol=1e-5, rtol=0)
        assert not rollout.logprobs[row, length:].any()


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.7},
    {"temperature": 1.5, "top_k": 8, "top_p": 0.9},
]


def expected_distribution(logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0) -> list[float]:
    """The definition as a loop over tokens in order of probability."""
    weights = [math.exp(x / temperature) for x in logits.double().tolist()]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    kept = order[:top_k] if top_k else order
    total, reached, nucleus = sum(weights[i] for i in kept), 0.0, []
    for i in kept:
        if reached < top_p:
            nucleus.append(i)
        reached += weights[i] / total
    mass = sum(weights[i] for i in nucleus)
    return [weights[i] / mass if i in nucleus else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_first_tokens_follow_the_distribution(kind: str, settings: dict[str, float]) -> None:
    draws = 1500
    prompt = prompts(kind)[0]
    rollout = roll(kind, [prompt], Sample(draws, **settings), tokens=1)
    ids = torch.tensor([prompt.input_ids])
    with torch.no_grad():
        if kind == "gpt2":
            logits = model(kind)(input_ids=ids).logits[0, -1]
        else:
            logits = model(kind)(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
    expected = expected_distribution(logits, **settings)
    counts = torch.bincount(rollout.response_ids[:, 0], minlength=len(expected)).tolist()
    assert all(count == 0 for count, p in zip(counts, expected, strict=True) if p == 0.0)
    cells = [(count, p * draws) for count, p in zip(counts, expected, strict=True) if p * draws >= 5]
    rest = (draws - sum(c for c, _ in cells), draws - sum(e for _, e in cells))
    cells += [rest] if rest[1] >= 5 else []
    freedom = len(cells) - 1
    chi_square = sum((c - e) ** 2 / e for c, e in cells)
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4  # beyond four standard deviations
    assert freedom >= 2


def test_later_positions_follow_the_distribution_too() -> None:
    """Second tokens given the most frequent first one."""
    kind, draws = "t5", 2000
    prompt = prompts(kind)[0]
    rollout = roll(kind, [prompt], Sample(draws, temperature=1.0), tokens=2)
    firsts = rollout.response_ids[:, 0]
    first = int(firsts[firsts != 1].mode().values)
    seconds = rollout.response_ids[firsts == first, 1]
    with torch.no_grad():
        decoder_ids = torch.tensor([[0, first]])
        logits = model(kind)(input_ids=torch.tensor([prompt.input_ids]), decoder_input_ids=decoder_ids).logits[0, 1]
    expected = logits.double().softmax(dim=-1) * len(seconds)
    counts = torch.bincount(seconds, minlength=len(expected)).double()
    large = expected >= 5
    assert len(seconds) > 200 and large.sum() >= 3
    chi_square = float(((counts - expected)[large] ** 2 / expected[large]).sum())
    freedom = int(large.sum())
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_draws_are_functions_of_their_names(kind: str) -> None:
    asked = prompts(kind, 5)
    whole = responses_by_name(roll(kind, asked, SAMPLE, seed=3, step=7))
    assert responses_by_name(roll(kind, asked, SAMPLE, seed=3, step=7)) == whole
    torch.manual_seed(99)  # the global generator is not asked
    assert responses_by_name(roll(kind, asked[::-1], SAMPLE, seed=3, step=7)) == whole
    for size in (1, 2, 3):
        batches = rollout_in_batches(
            GenerateEngine(policy(kind)), asked, [SAMPLE], max_new_tokens=8, prompts_per_batch=size, seed=3, step=7
        )
        assert len(batches) == -(-5 // size)
        assert responses_by_name(join_rollouts(batches, policy(kind).pad_id)) == whole
    more = Sample(5, temperature=1.3)
    assert {k: v for k, v in responses_by_name(roll(kind, asked, more, seed=3, step=7)).items() if k[2] < 3} == whole
    longer = responses_by_name(roll(kind, asked, SAMPLE, tokens=11, seed=3, step=7))
    assert all(longer[name][: len(ids)] == ids for name, ids in whole.items())


@pytest.mark.parametrize("names", [{"seed": 4, "step": 7}, {"seed": 3, "step": 8}])
def test_seed_and_step_change_the_draws(names: dict[str, int]) -> None:
    asked = prompts("t5")
    first = responses_by_name(roll("t5", asked, SAMPLE, seed=3, step=7))
    other = responses_by_name(roll("t5", asked, SAMPLE, **names))
    assert sum(first[name] != other[name] for name in first) >= 7  # of nine


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_several_decodings_of_one_memory(kind: str) -> None:
    asked, ours = prompts(kind), policy(kind)
    engine = GenerateEngine(ours)
    memory = engine.encode(asked)
    both = engine.decode(memory, [Greedy(), SAMPLE], max_new_tokens=8, seed=1)
    assert both.prompt_index.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert both.decoding_index.tolist() == [0, 1, 1, 1] * 3
    assert both.sample_index.tolist() == [0, 0, 1, 2] * 3
    assert tuple(both.decodings) == (Greedy(), SAMPLE)
    named = responses_by_name(both)
    alone = responses_by_name(roll(kind, asked, SAMPLE, seed=1))
    assert all(named[prompt, 1, sample] == ids for (prompt, _, sample), ids in alone.items())
    greedy = responses_by_name(roll(kind, asked, Greedy()))
    assert all(named[name] == ids for name, ids in greedy.items())
    twice = responses_by_name(engine.decode(memory, [SAMPLE, SAMPLE], max_new_tokens=8, seed=1))
    assert all(twice[p, 0, s] == alone[p, 0, s] for p, _, s in alone)
    assert sum(twice[p, 1, s] != twice[p, 0, s] for p, _, s in alone) >= 7  # fresh noise for the second sampling
    with pytest.raises(ValueError, match="at least one decoding"):
        engine.decode(memory, [], max_new_tokens=8)


def test_an_encoding_is_computed_once_for_all_decodings() -> None:
    ours, calls = policy("t5"), []
    ours.model.encoder.final_layer_norm.register_forward_hook(lambda *_: calls.append(1))
    roll(ours, prompts("t5"), Greedy(), SAMPLE, Sample(2))
    assert len(calls) == 1


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_an_empty_response_is_one_end_token(kind: str) -> None:
    rollout = roll(favour(policy(kind), token=1, by=1e4), prompts(kind), Greedy(), Sample(2))
    assert rollout.response_ids.tolist() == [[1]] * 9
    assert rollout.response_mask.tolist() == [[1]] * 9
    assert list(rollout.texts) == [""] * 9
    assert list(rollout.token_ends) == [(0,)] * 9
    assert torch.allclose(rollout.logprobs, torch.zeros(9, 1))


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_response_may_reach_the_limit_without_an_end_token(kind: str) -> None:
    rollout = roll(favour(policy(kind), token=1, by=-1e4), prompts(kind), Greedy(), Sample(2), tokens=6)
    assert rollout.response_ids.shape == (9, 6)
    assert rollout.response_mask.all() and not (rollout.response_ids == 1).any()
    assert all(
        len(ends) == 6 and ends[-1] == len(text) for text, ends in zip(rollout.texts, rollout.token_ends, strict=True)
    )


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_rows_are_masked_after_their_first_end_token(kind: str) -> None:
    rollout = roll(favour(policy(kind), token=1, by=1.0), prompts(kind), Sample(16, temperature=2.0), tokens=10)
    lengths = set()
    for ids, mask in zip(rollout.response_ids.tolist(), rollout.response_mask.tolist(), strict=True):
        length = ids.index(1) + 1 if 1 in ids else len(ids)
        assert mask == [1] * length + [0] * (len(ids) - length)
        assert all(token == 0 for token in ids[length:])
        lengths.add(length)
    assert len(lengths) > 3
    assert rollout.lengths().max() == rollout.response_ids.shape[1]  # trimmed to the longest


def test_a_pad_token_that_is_the_end_token() -> None:
    """The common GPT-2 set-up: the end token stays real and the padding after it does not."""
    base = favour(policy("gpt2"), token=1, by=1.5)
    plain = copy.deepcopy(tokenizer("gpt2"))
    plain.pad_token = plain.eos_token
    ours = CausalPolicy(base.model, plain).eval()
    assert ours.pad_id == 1
    asked = prompts("gpt2", 5)
    rollout = roll(ours, asked, Sample(4, temperature=2.0))
    ended = 0
    for ids, mask in zip(rollout.response_ids.tolist(), rollout.response_mask.tolist(), strict=True):
        length = ids.index(1) + 1 if 1 in ids else len(ids)
        assert mask == [1] * length + [0] * (len(ids) - length)
        ended += length < len(ids)
    assert ended > 3
    assert responses_by_name(rollout) == responses_by_name(roll(base, asked, Sample(4, temperature=2.0)))


def test_several_end_tokens() -> None:
    ours = favour(policy("t5"), token=5, by=1e4)
    ours.model.generation_config.eos_token_id = [1, 5]
    again = type(ours)(ours.model, ours.tokenizer)
    rollout = roll(again, prompts("t5"), Greedy())
    assert rollout.response_ids.tolist() == [[5]] * 3


def test_texts_and_offsets_belong_to_the_sampled_ids() -> None:
    rollout = roll("t5", prompts("t5"), Sample(4, temperature=2.0), tokens=10)
    words = tokenizer()
    for row, text in enumerate(rollout.texts):
        ids = rollout.response_ids[row][rollout.response_mask[row].bool()].tolist()
        assert text == words.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for t, end in enumerate(rollout.token_ends[row]):
            assert text[:end] == words.decode(ids[: t + 1], skip_special_tokens=True)
        assert len(rollout.token_ends[row]) == len(ids)


def test_settings_saved_with_the_model_do_not_leak_in() -> None:
    """The behaviour policy is the softmax that the update computes, whatever generation_config.json says."""
    ours, asked = policy("t5"), prompts("t5")
    expected = responses_by_name(roll(ours, asked, Greedy(), SAMPLE))
    settings = ours.model.generation_config
    settings.repetition_penalty, settings.no_repeat_ngram_size, settings.suppress_tokens = 5.0, 1, [4, 5, 6, 7, 8]
    settings.num_beams, settings.do_sample, settings.top_k, settings.temperature = 4, True, 2, 0.1
    settings.forced_eos_token_id, settings.min_new_tokens = 1, 8
    assert responses_by_name(roll(ours, asked, Greedy(), SAMPLE)) == expected
    assert ours.model.generation_config is settings


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
@pytest.mark.parametrize("sampling", [Sample(4, temperature=0.7, top_k=6), Sample(4, temperature=1.5, top_p=0.8)])
def test_scoring_the_sampling_distribution_gives_what_the_sampler_used(kind: str, sampling: Sample) -> None:
    ours = policy(kind)
    ours.scored = sampling
    rollout = roll(ours, prompts(kind), sampling)
    now = ours.logprobs(ours.encode(prompts(kind)), rollout.prompt_index, rollout.response_ids, rollout.response_mask)
    torch.testing.assert_close(now.logprobs, rollout.logprobs, atol=1e-5, rtol=0)  # ratio 1
    plain = model(kind)
    settings = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    for row, prompt in enumerate(rollout.row_prompts()):
        ids, first = torch.tensor([prompt.input_ids]), int(rollout.response_ids[row, 0])
        with torch.no_grad():
            if kind == "gpt2":
                logits = plain(input_ids=ids).logits[0, -1]
            else:
                logits = plain(input_ids=ids, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
        probability = expected_distribution(logits, **settings)[first]
        assert math.exp(float(rollout.logprobs[row, 0])) == pytest.approx(probability, abs=1e-5)


def test_nothing_keeps_a_graph() -> None:
    rollout = roll("t5", prompts("t5"), SAMPLE)
    assert not rollout.logprobs.requires_grad
    ours = policy("t5")
    assert not GenerateEngine(ours).encode(prompts("t5")).states.requires_grad


def test_generate_can_be_chosen_and_continuous_batching_needs_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_engine(policy("llama"), "generate"), GenerateEngine)
    monkeypatch.setattr(select.transformers, "__version__", "5.17.3")
    with pytest.raises(ConfigError, match=r"needs transformers 5\.19 or newer, this is 5\.17\.3"):
        make_engine(policy("llama"), "continuous")
