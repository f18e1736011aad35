"""The benchmarks: their arithmetic by hand and against torch's own counter, and tiny runs from end to end."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bare_machine import run_on_a_bare_machine
from script_runs import run_script
from torch.utils.flop_counter import FlopCounterMode
from transformers import T5ForConditionalGeneration

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import draft, plain, plain_rewards, ppo_step, rollout_engines, sampling, scaling
from benchmarks.equality import check_equality
from benchmarks.families import (
    CAUSAL,
    FAMILIES,
    CausalShape,
    T5Shape,
    build_causal,
    build_t5gemma,
    causal_config,
    t5gemma_config,
)
from benchmarks.limits import (
    Work,
    cross_flops,
    encoder_flops,
    forward_flops,
    layer_weights,
    limits,
    longformer_flops,
    query_width,
    response_flops,
    token_flops,
    update_flops,
)
from benchmarks.machine import Rates, memory_at_rest, peak_memory
from benchmarks.profiles import PHASES, PROFILES, LongformerShape, choose_profile
from benchmarks.rounds import Side
from benchmarks.workload import (
    EOS,
    FIRST_WORD,
    PlainSegmenter,
    build_policy,
    build_tokenizer,
    end_ids,
    make_prompts,
    prompt_lengths,
    reward_tokenizer,
    t5_config,
    word,
)
from finegrained_rlhf.core.errors import ConfigError
from reward_models.encoders.inputs import RewardInputEncoder
from reward_models.parts import answer_parts, factuality_parts, relevance_parts

ROOT = Path(__file__).parents[2]
TINY = PROFILES["tiny"]
SHAPE = T5Shape(width=2, inner=4, layers=3, heads=1)


# Arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profil=cpu"], "profil: no such key"),
        (["profile=tpu"], "profile: expected one of cpu, gpu, tiny"),
        (["load=yes"], "load: expected true or false"),
        (["family=bert"], "family: expected one of t5, gpt2, llama, qwen3, t5gemma"),
        (["profile"], "expected key=value"),
        (["profile=tiny", "rounds=2", "rounds=3"], "rounds: given twice"),
        (["profile=tiny", "rounds=two"], "rounds: expected a whole number"),
        (["profile=tiny", "rounds=0"], "rounds: expected at least 1"),
        (["profile=tiny", "lengths=ragged"], "lengths: expected"),
        (["profile=tiny", "precision=fp16"], "precision: expected"),
        (["profile=tiny", "new_tokens=200"], "positions"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ppo_step.main(arguments)


def test_answers_that_copy_are_drafted_and_a_script_is_what_comes_out() -> None:
    profile = choose_profile({"profile": "tiny", "family": "llama"})
    (line,) = draft.measure(draft.policy_of(profile), profile, 3, 0.9, rounds=1)
    assert line["tokens a step"] > 1 and line["fed a token"] >= 1 and line["with, s"] > 0
    for wrong in ("rounds=0", "data=x.json", "family=t5", "precision=fp8"):
        with pytest.raises(ConfigError):
            draft.main([wrong])


def test_sampling_measures_every_vocabulary_and_refuses_wrong_arguments() -> None:
    draws = sampling.main(["rows=1", "repeats=1"])["draws"]
    assert [line["vocabulary"] for line in draws] == [50_257] * 4 + [151_936] * 4
    assert {line["tokens kept"] for line in draws if line["draws"] == "top_k=20"} == {20}
    for wrong in ("rows=no", "repeats=0"):
        with pytest.raises(ConfigError, match="rows and repeats"):
            sampling.main([wrong])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out=x", "size=tiny"], "size: no such key"),
        (["sizes=tiny"], "out=DIRECTORY"),
        (["out=x", "sizes=h"], "sizes:"),
    ],
)
def test_scaling_refuses_wrong_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scaling.main(arguments)


# Limits ---------------------------------------------------------------------------------------------------------


def test_operations_by_hand() -> None:
    assert encoder_flops(SHAPE, 3) == 3 * 3 * (8 * 4 + 4 * 2 * 4 + 4 * 3 * 2)
    assert cross_flops(SHAPE, 3) == 3 * 3 * 4 * 4
    assert token_flops(SHAPE, 3, 2) == 3 * (12 * 4 + 4 * 2 * 4 + 4 * 2 * 2 + 4 * 3 * 2)
    assert response_flops(SHAPE, 3, 5) == sum(token_flops(SHAPE, 3, t) for t in range(1, 6))
    two_layers = LongformerShape(width=2, inner=4, layers=2, heads=1, window=4, positions=64)
    # 10 tokens see 5 keys each; in the last layer keys and values of all tokens, the rest at 3 positions
    assert longformer_flops(two_layers, 10, 3) == 10 * (32 + 32 + 40) + 4 * 10 * 4 + 3 * (16 + 32 + 40)


@pytest.mark.parametrize("family", ["t5", "t5gemma"])
def test_operations_are_those_that_torch_counts(family: str) -> None:
    shape = T5Shape(width=32, inner=48, layers=2, heads=4, gated=family == "t5gemma")
    model: Any = T5ForConditionalGeneration(t5_config(shape, 100)).eval()
    if family == "t5gemma":
        ids = {"pad_token_id": 0, "eos_token_id": 1}
        model = build_t5gemma(t5gemma_config(shape, 100, 3, **ids), torch.device("cpu"), 4)
    model.set_attn_implementation("eager")  # the counter does not see the CPU's fused attention
    read = torch.randint(5, 100, (1, 7))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=read, decoder_input_ids=torch.full((1, 1), 3), use_cache=False)
    assert forward_flops(shape, Work([7], [[1]], []), 100) == counter.get_total_flops()


@pytest.mark.parametrize("family", sorted(CAUSAL))
def test_operations_of_decoder_only_models_are_those_that_torch_counts(family: str) -> None:
    shape = CausalShape(
        family, width=32, inner=48, layers=2, heads=4, key_heads=4 if family == "gpt2" else 2, head_width=8
    )
    ids = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 3}
    model = build_causal(causal_config(shape, 100, 64, **ids), torch.device("cpu"), 4)
    model.set_attn_implementation("eager")
    assert sum(p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "wpe" not in n) == (
        2 * layer_weights(shape) + 100 * 32
    )
    length, answer = 7, 3
    tokens = torch.randint(5, 100, (1, length + answer - 1))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=tokens, use_cache=False, logits_to_keep=answer)
    # The counter counts products of queries with later keys, which nothing needs.
    seen, counted = sum(range(1, tokens.shape[1] + 1)), tokens.shape[1] ** 2
    unneeded = 2 * 4 * query_width(shape) * (counted - seen)
    assert forward_flops(shape, Work([length], [[answer]], []), 100) == counter.get_total_flops() - unneeded


def test_samples_share_the_encoder_in_the_limit() -> None:
    one, four = (forward_flops(SHAPE, Work([6], [[5] * n], []), 10) for n in (1, 4))
    assert four - one == 3 * (response_flops(SHAPE, 6, 5) + 2 * 5 * 2 * 10)


def test_seconds_of_the_phases_by_hand() -> None:
    profile = replace(TINY, policy=SHAPE, value=SHAPE, vocabulary=10, epochs=2, precision="fp32")
    work = Work([3], [[2, 1]], [[(4, 1)], [(4, 2)], [(4, 1)]])
    # Memory alone: 6·2² + 2·2·4 = 40 weights a layer; head 20; cross keys and values 2·3·2 = 12 a layer;
    # self keys and values 4 a layer, row and position.
    slow_memory = limits(profile, work, Rates(copy=1.0, matmul=1e30))
    steps = (120 + 20 + 3 * (12 + 4 * 1 * 2)) + (120 + 20 + 3 * (12 + 4 * 2 * 1))
    assert slow_memory["rollout"] == pytest.approx(4 * (120 + steps))
    # Operations alone.
    slow_products = limits(profile, work, Rates(copy=1e30, matmul=2.0))
    policy, value = forward_flops(SHAPE, work, 10), forward_flops(SHAPE, work)
    head_and_self = sum(response_flops(SHAPE, 3, n) + n * 2 * 2 * 10 for n in (2, 1))
    assert slow_products["rollout"] == pytest.approx(
        (encoder_flops(SHAPE, 3) + cross_flops(SHAPE, 3) + head_and_self) / 2
    )
    assert slow_products["scoring"] == pytest.approx((policy + value) / 2)
    assert slow_products["update"] == pytest.approx(2 * 3 * (policy + value) / 2) == update_flops(profile, work) / 2
    assert slow_products["total"] == pytest.approx(sum(slow_products[phase] for phase in PHASES[:4]))
    in_bf16 = limits(replace(profile, precision="bf16"), work, Rates(copy=1e30, matmul=2.0))
    assert in_bf16["scoring"] == pytest.approx((2 * policy + value) / 2)


# Workload -------------------------------------------------------------------------------------------------------


def test_every_id_has_a_text_that_gives_it_back() -> None:
    tokenizer = build_tokenizer(512)
    ids = list(range(FIRST_WORD, 512))
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert tokenizer(text).input_ids == [*ids, EOS]
    assert word(32).endswith(".") and word(40).endswith(",") and word(33) == "w00033"


def test_prompts_have_the_lengths_that_were_asked_for() -> None:
    assert prompt_lengths(TINY, "fixed", 3) == [40, 40, 40]
    lengths = prompt_lengths(replace(TINY, prompt_tokens=200), "spread", 3)
    assert lengths == [200, 150, 100]
    prompts = make_prompts(build_tokenizer(512), 512, [*lengths, 33], seed=0)
    assert [len(prompt.input_ids) for prompt in prompts] == [200, 150, 100, 33]
    assert len({prompt.text for prompt in prompts}) == 4
    assert prompts == make_prompts(build_tokenizer(512), 512, [*lengths, 33], seed=0)


def test_special_tokens_are_never_among_the_twenty_highest() -> None:
    torch.manual_seed(0)
    model = build_policy(T5Shape(64, 128, 2, 4), 4096, torch.device("cpu"))
    prompts, written = torch.randint(FIRST_WORD, 4096, (4, 30)), torch.randint(FIRST_WORD, 4096, (4, 40))
    with torch.no_grad():
        logits = model(input_ids=prompts, decoder_input_ids=written).logits
    best = logits.topk(20).indices
    assert int(best.min()) >= FIRST_WORD
    assert logits[..., EOS].abs().max() < 0.5 < logits.std()
    repeats = (best[..., 0] == written).double().mean()
    assert repeats < 0.1 and best[..., 0].unique().numel() > 60


def test_responses_of_the_spread_run_end_at_one_word_in_half_the_limit() -> None:
    assert end_ids(TINY, "fixed") == (EOS,)
    ids = end_ids(TINY, "spread")
    assert len(ids) == pytest.approx((512 - FIRST_WORD) / 6, abs=1)
    assert min(ids) >= FIRST_WORD


def test_plain_segmenter() -> None:
    segmenter, text = PlainSegmenter(), " One two. Three, four! And 3.5 more?  end"
    assert [text[a:b] for a, b in segmenter.sentences(text)] == ["One two.", "Three, four!", "And 3.5 more?", "end"]
    assert segmenter.sentences("  ") == []
    long = "a b c d e, f g h i j k l. m"
    assert [long[a:b] for a, b in segmenter.sub_sentences(long)] == ["a b c d e,", "f g h i j k l.", "m"]


@pytest.mark.parametrize("name", ["relevance", "factuality", "completeness"])
def test_both_sides_give_the_reward_models_one_input(name: str) -> None:
    tokenizer = reward_tokenizer(512)
    prompt = make_prompts(build_tokenizer(512), 512, [100], seed=1)[0]
    segments = [f"{word(20)} {word(32)}", f"{word(21)}, {word(48)}".replace(",", ""), word(90)]
    response = " ".join(segments)
    question, passages = prompt.metadata["question"], prompt.metadata["passages"]
    parts = {
        "relevance": relevance_parts(question, segments),
        "factuality": factuality_parts(question, passages, segments),
        "completeness": answer_parts(question, passages, response),
    }[name]
    encoded = RewardInputEncoder(tokenizer, 256).encode([parts])[0]
    ids = tokenizer(plain_rewards.reward_input(name, prompt, segments, response)).input_ids
    assert tuple(ids) == encoded.ids
    assert tuple(i for i, token in enumerate(ids[:-1]) if token == EOS) == encoded.separators


# Memory ---------------------------------------------------------------------------------------------------------


def test_peak_memory_sees_what_a_block_takes_and_gives_back() -> None:
    size = 200 * 2**20
    with peak_memory(torch.device("cpu")) as peak:
        torch.ones(size // 4).sum()
    assert peak.rise is not None and 0.9 * size < peak.rise < 1.5 * size
    with peak_memory(torch.device("cpu")) as small:
        torch.ones(8).sum()
    assert small.rise is not None and small.rise < 0.2 * size
    assert memory_at_rest(torch.device("cpu"))


# Whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.scripts
def test_a_tiny_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ppo_step.main(["profile=tiny", "rounds=1", "lengths=fixed", f"out={tmp_path / 't.json'}"])
    shown = capsys.readouterr().out
    document = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert set(document["phases"]) == set(PHASES) and document["other_runs"] == {}
    assert all(found["ok"] and found["value"] <= found["tolerance"] for found in document["equal"].values())
    assert all(f"| {phase} " in shown for phase in PHASES)


@pytest.mark.slow
@pytest.mark.scripts
def test_tiny_profile_end_to_end_without_what_a_bare_machine_lacks(tmp_path: Path) -> None:
    shown = run_on_a_bare_machine("ppo_step", ["profile=tiny", "out=tiny.json"], tmp_path)
    document = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))
    assert document["profile"] == "tiny" and document["lengths"] == "fixed"
    assert document["machine"]["copy_bytes_per_s"] > 0 < document["machine"]["matmul_flops_per_s"]
    for run in (document, document["other_runs"]["spread"]):
        assert set(run["phases"]) == set(PHASES)
        for seconds in run["phases"].values():
            assert set(seconds) == {"plain_s", "ours_s", "ratio", "limit_s"}
            assert seconds["ratio"] == pytest.approx(seconds["plain_s"] / seconds["ours_s"])
            assert seconds["limit_s"] > 0 < seconds["ours_s"]
        parts = sum(run["phases"][phase]["ours_s"] for phase in PHASES[:4])
        assert 0.5 * parts < run["phases"]["total"]["ours_s"]
        assert all(len(run["rounds"][side]) == TINY.rounds for side in ("plain", "ours"))
        assert set(run["peak_bytes"]) == {"plain", "ours"}
    assert set(document["last_batch"]["response_tokens"]) == {TINY.new_tokens}
    spread = document["other_runs"]["spread"]["last_batch"]
    assert len(set(spread["response_tokens"])) > 1 < len(set(spread["prompt_tokens"]))
    names = {"greedy_tokens", "decode_logprobs", "reward_scores", "updated_parameters", "relative_update"}
    assert set(document["equal"]) == names
    assert all(found["ok"] and found["value"] <= found["tolerance"] for found in document["equal"].values())
    assert all(f"| {phase} " in shown for phase in PHASES) and "spread lengths" in shown


@pytest.mark.slow
@pytest.mark.scripts
def test_a_decoder_only_family_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "llama.json"
    ppo_step.main(["family=llama", "profile=tiny", "rounds=1", "lengths=spread", "load=true", f"out={out}"])
    document = json.loads(out.read_text(encoding="utf-8"))
    assert (document["family"], document["model"]) == ("llama", "2 layers of width 32")
    assert set(document["under_load"]["phases"]) == set(PHASES) and "under load" in capsys.readouterr().out
    assert all(set(seconds) == {"plain_s", "ours_s", "ratio", "limit_s"} for seconds in document["phases"].values())
    assert all(seconds["limit_s"] < seconds["ours_s"] for seconds in document["phases"].values())
    assert len(document["equal"]) == 5 and all(found["ok"] for found in document["equal"].values())


@pytest.mark.scripts
@pytest.mark.parametrize("family", ["gpt2", "qwen3", "t5gemma"])
def test_both_sides_of_a_family_compute_the_same(family: str, tmp_path: Path) -> None:
    found = check_equality(choose_profile({"family": family, "profile": "tiny"}), tmp_path)
    assert all(line["ok"] for line in found.values())


@pytest.mark.parametrize("family", ["llama", "t5gemma"])
def test_models_of_other_families_write_and_never_a_special_token(family: str) -> None:
    shape = choose_profile({"family": family, "profile": "tiny"}).policy
    torch.manual_seed(0)
    ids, cpu = {"pad_token_id": 0, "eos_token_id": EOS}, torch.device("cpu")
    written = torch.randint(FIRST_WORD, 512, (4, 40))
    if isinstance(shape, CausalShape):
        model = build_causal(causal_config(shape, 512, 512, **ids, bos_token_id=3), cpu, FIRST_WORD)
        inputs = {"input_ids": written}
    else:
        model = build_t5gemma(t5gemma_config(shape, 512, 3, **ids), cpu, FIRST_WORD)
        inputs = {"input_ids": torch.randint(FIRST_WORD, 512, (4, 30)), "decoder_input_ids": written}
    with torch.no_grad():
        logits = model(**inputs).logits
    best = logits.topk(20).indices
    assert int(best.min()) >= FIRST_WORD and 0.5 < float(logits.std()) < 2
    assert float((best[..., 0] == written).double().mean()) < 0.2 and best[..., 0].unique().numel() > 40
    notes = [profiles["cpu"]["note"] for profiles in FAMILIES.values()]
    assert all(" of its " in note for note in notes)  # what was left out is said


@pytest.mark.scripts
def test_equality_notices_a_side_that_computes_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score = plain_rewards.PlainRewards.score
    monkeypatch.setattr(plain_rewards.PlainRewards, "score", lambda *a: [[v + 1e-3 for v in row] for row in score(*a)])
    monkeypatch.setattr(plain.Plain, "autocast", lambda self: torch.autocast("cpu", dtype=torch.bfloat16))
    found = check_equality(TINY, tmp_path)
    assert not any(found[name]["ok"] for name in ("decode_logprobs", "reward_scores", "updated_parameters"))


@pytest.mark.slow
@pytest.mark.scripts
def test_bf16_sides_agree_within_what_bf16_allows(tmp_path: Path) -> None:
    found = check_equality(replace(TINY, precision="bf16"), tmp_path)
    bf16 = {"bf16_mean_decode_logprobs", "bf16_mean_reward_scores", "bf16_relative_update"}
    assert set(found) > bf16 | {"updated_parameters"}
    assert all(line["ok"] for line in found.values())
    assert found["bf16_relative_update"]["value"] > found["relative_update"]["value"]


@pytest.mark.scripts
def test_a_wrong_key_on_the_command_line_is_one_line(tmp_path: Path) -> None:
    for script in ("ppo_step", "scaling", "dialki", "span_f1"):
        finished = run_script(str(ROOT / f"benchmarks/{script}.py"), "colour=red", cwd=tmp_path)
        assert finished.returncode == 2
        assert finished.stderr.startswith("error: colour: no such key") and finished.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.scripts
def test_scaling_writes_its_numbers_and_its_plot(tmp_path: Path) -> None:
    document = scaling.main(["sizes=tiny", f"out={tmp_path}"])
    assert json.loads((tmp_path / "scaling.json").read_text(encoding="utf-8")) == json.loads(json.dumps(document))
    assert set(document["factors"]) == set(scaling.TITLES)
    for factor, points in document["factors"].items():
        assert [point["value"] for point in points] == list(scaling.FACTORS["tiny"][factor])
        assert all(set(point["phases"]) == set(PHASES) for point in points)
    tokens = [point["response_tokens"] for point in document["factors"]["new_tokens"]]
    assert tokens == [6 * 6, 12 * 6]
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_memory_of_a_side_needs_a_second_step() -> None:
    class Runner:
        def step(self) -> object:
            self.kept = torch.ones(2**20)
            return type("Step", (), {"seconds": {"total": 1.0}, "tokens": 3})()

    side = Side(Runner)  # type: ignore[arg-type]
    side.run(torch.device("cpu"), counted=False)
    assert side.peak is None and side.steps == []
    side.run(torch.device("cpu"), counted=True)
    assert side.peak is not None and side.seconds("total") == 1.0 and side.tokens == [3]


def test_engines_draw_the_same_step_in_turn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "engines.json"
    document = rollout_engines.main(["profile=tiny", "engines=generate,own", f"out={out}"])
    generate, own = document["engines"]
    assert [len(line["seconds"]) for line in (generate, own)] == [document["shape"]["rounds"]] * 2
    assert generate["tokens"] == own["tokens"] and min(own["tokens"]) > 0  # fixed lengths
    assert "of generate" in capsys.readouterr().out and json.loads(out.read_text())["shape"]["family"] == "llama"
    for words, message in ((["engines=own,trl"], "got trl"), (["family=t5"], "expected a decoder-only one")):
        with pytest.raises(ConfigError, match=message):
            rollout_engines.main(["profile=tiny", *words])
