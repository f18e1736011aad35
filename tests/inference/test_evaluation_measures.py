"""What an evaluation measures, against numbers worked out by hand; and that it measures every example once."""

import json
import sys
from pathlib import Path

import pytest
from evaluation_toy import LetterMonitor, composer
from script_runs import run_in_two_processes, run_script

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.evaluation import evaluate_responses
from finegrained_rlhf.runtime.processes import Processes

PROMPTS = [
    Prompt("a", "What?", (), {"question": "What?", "passages": (), "references": ("the cat sat", "a dog ran")}),
    Prompt("b", "Who?", (), {"question": "Who?", "passages": (), "references": ("nobody knows that",)}),
    Prompt("c", "Why?", (), {"question": "Why?", "passages": (), "references": ("because",)}),
]
RESPONSES = ["a dog ran", "bad words bad", ""]


def test_metrics_are_the_numbers_worked_out_by_hand() -> None:
    result = evaluate_responses(
        PROMPTS,
        RESPONSES,
        Processes(),
        composer=composer(),
        oracle=LetterMonitor(),
        tokens=[3, 5, 0],
        progress=False,
    )
    assert result.metrics == pytest.approx(
        {
            # one answer is its second reference, the others share no word with theirs
            "rouge_lsum": 1 / 3,
            "mean_words": 2.0,
            "mean_tokens": 8 / 3,
            # of six words two are "bad": 4/6 without error; the sums of the three answers are 3, -1 and 0
            "reward/words/raw": 2 / 3,
            "reward/words/error_free_share": 4 / 6,
            "reward/words/segments": 6,
            # 9, 13 and 0 characters
            "reward/length/raw": 22 / 3,
            "reward/length/mean_score": 22 / 3,
            "reward/total": 0.5 * 2 / 3 + 0.1 * 22 / 3,
            # "a dog ran" has one d in 9 characters, "bad words bad" three in 13
            "d_rate": 4 / 22,
            "nothing": 0.0,
        }
    )
    first = result.responses[0]
    assert (first.prompt.id, first.response, first.tokens, first.finished) == ("a", "a dog ran", 3, None)
    assert first.components["words"].spans == ((0, 1), (2, 5), (6, 9))
    assert dict(first.counts) == {"d_rate": (1, 9), "nothing": (0, 0)}
    json.dumps(dict(result.metrics), allow_nan=False)


def test_what_is_not_known_is_left_out() -> None:
    plain = evaluate_responses(PROMPTS, RESPONSES, Processes(), progress=False).metrics
    assert sorted(plain) == ["mean_words", "rouge_lsum"]
    bare = [Prompt("a", "What?", ())]
    assert sorted(evaluate_responses(bare, ["x"], Processes(), progress=False).metrics) == ["mean_words"]
    running = evaluate_responses(PROMPTS, RESPONSES, Processes(), composer=composer("running"), progress=False).metrics
    assert "reward/total" not in running and "reward/length/raw" in running


def test_more_answers_than_one_scoring_batch_give_the_mean_over_all() -> None:
    count = 150
    prompts = [PROMPTS[i % 3] for i in range(count)]
    responses = [RESPONSES[i % 3] for i in range(count)]
    many = evaluate_responses(prompts, responses, Processes(), composer=composer(), oracle=LetterMonitor())
    few = evaluate_responses(PROMPTS, RESPONSES, Processes(), composer=composer(), oracle=LetterMonitor())
    expected = {**few.metrics, "reward/words/segments": 6 * count / 3}
    assert dict(many.metrics) == pytest.approx(expected)
    assert [row.response for row in many.responses] == responses


def test_a_response_too_few_is_a_bug_and_not_zipped_away() -> None:
    with pytest.raises(ValueError, match="one response"):
        evaluate_responses(PROMPTS, RESPONSES[:2], Processes(), progress=False)


WORKER = """
import json, sys
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.inference.evaluation import evaluate_policy
from finegrained_rlhf.inference.generate import Answering, open_generator, sample_records
from finegrained_rlhf.inference.inputs import encode_prompts
from evaluation_toy import LetterMonitor, composer

processes = Processes()
generator = open_generator(sys.argv[1], processes)
items = [(f"p{i}", "who " * (i + 1)) for i in range(5)]
notes = [{"question": "who", "passages": (), "references": ("who what",)}] * 5
prompts = encode_prompts(items, generator.tokenizer, 64, "truncate", notes)
found = []
for count in (5, 1):
    answering = Answering(max_new_tokens=6, batch_size=2, progress=False)
    result = evaluate_policy(generator, prompts[:count], processes, answering, composer=composer(),
                             oracle=LetterMonitor())
    found.append({"metrics": dict(result.metrics), "ids": [row.prompt.id for row in result.responses]})
answering = Answering(Sample(2, 1.2), max_new_tokens=6, batch_size=1, progress=False)
records = sample_records(generator, prompts, processes, answering)
found.append([[record.id, *record.outputs] for record in records])
with open(f"{sys.argv[2]}.{processes.rank}", "w") as file:
    json.dump(found, file)
processes.close()
"""


def test_two_processes_evaluate_every_example_once_and_agree_with_one(tmp_path: Path) -> None:
    from finegrained_rlhf.models.tiny import TinyT5Config
    from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer

    tokenizer = build_tokenizer(["who what where"])
    build_t5(tokenizer, TinyT5Config(d_model=16, d_ff=32, num_layers=1), seed=2).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "worker.py").write_text(f"import sys\nsys.path[1:1] = {sys.path!r}\n{WORKER}")
    for name, start in (("one", run_script), ("two", run_in_two_processes)):
        done = start(str(tmp_path / "worker.py"), str(tmp_path / "model"), str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    one, first, second = (json.loads((tmp_path / name).read_text()) for name in ("one.0", "two.0", "two.1"))
    assert first == second
    assert first[0]["ids"] == [f"p{i}" for i in range(5)] and first[1]["ids"] == ["p0"]
    for of_two, of_one in zip(first[:2], one[:2], strict=True):
        assert of_two["ids"] == of_one["ids"]
        assert of_two["metrics"] == pytest.approx(of_one["metrics"], abs=1e-9)
    assert first[2] == one[2]
