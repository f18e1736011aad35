"""Directories and files as a stranger could hand them over: each holds a payload that would leave a marker behind."""

from __future__ import annotations

import json
import pickle
import shutil
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from conqrr_toy import questions
from dialki_toy import save_bert, tiny_dialki, toy_examples
from dpr_toy import dpr_rows
from feedback_samples import record
from inscit_toy import conversations
from report_toy import write_lines, write_toy_run
from rl_toy import model, tokenizer

from finegrained_rlhf.conqrr.data import write_rewrite_jsonl
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialogue.records import Turn
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from reward_models.record import RewardModelRecord

SCRIPT = "</script><script>document.title='ran'</script>"


class Mark:
    """What a pickle of it does: open a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


@dataclass(frozen=True)
class Strangers:
    """The directory that they all lie in, and where markers would appear."""

    root: Path

    @property
    def markers(self) -> list[str]:
        """The payloads that ran."""
        return sorted(path.name for path in self.root.glob("MARKER_*"))

    def marker(self, name: str) -> Path:
        return self.root / f"MARKER_{name}"

    def pickle(self, path: Path, name: str) -> Path:
        """A pickle that leaves a marker, as any file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(Mark(self.marker(name))))
        return path

    def code(self, directory: Path, name: str) -> None:
        """`marking.py`, whose import leaves a marker; it has a class for whoever looks for one."""
        (directory / "marking.py").write_text(
            f"open({str(self.marker(name))!r}, 'w').close()\nfrom transformers import PretrainedConfig as MarkConfig\n"
            "from torch.nn import Identity as Mark\n"
        )


def make_strangers(root: Path) -> Strangers:
    """All of them, below `root`."""
    made = Strangers(root)
    root.mkdir(parents=True, exist_ok=True)
    _models(made)
    _run(made)
    _index(made)
    made.pickle(root / "payload.jsonl", "data")
    made.pickle(root / "payload.json", "data")
    made.code(root, "modules")
    (root / "exports").mkdir()
    made.pickle(root / "exports" / "ann.json", "export")
    (root / "project").mkdir()
    write_json(root / "project" / "manifest.json", {"_target_": "marking.Mark", "tool": "marking", "items": SCRIPT})
    _memory(root / "memory.db")
    row = {"id": "1", "question": "Who?", "query": "Who?", "passages": [["A title", "A sentence."]], "answer": ["Me."]}
    write_lines(root / "prompts.jsonl", [row])
    write_lines(root / "texts.jsonl", [{"id": str(n), "text": "Some words.", "label": f"c{n % 2}"} for n in range(4)])
    write_lines(root / "towers.jsonl", dpr_rows(4))
    write_rewrite_jsonl(root / "questions.jsonl", questions())
    write_feedback(root / "feedback.json", [record("It is cold. It is deep.", [("It is deep.", "Irrelevant")])])
    write_json(root / "inscit.json", conversations())
    examples = toy_examples()
    rows = [dialogue_row(e.id, (*e.turns, Turn("agent", "it is .", e.gold[0])), e.passages, e.unseen) for e in examples]
    write_dialogues(root / "dialogues.jsonl", rows)
    return made


def _change(path: Path, **settings: Any) -> None:
    before = json.loads(path.read_text()) if path.is_file() else {}
    write_json(path, {**before, **settings})


def _models(made: Strangers) -> None:
    plain = made.root / "model" / "plain"
    model("gpt2").save_pretrained(plain)
    tokenizer("gpt2").save_pretrained(plain)
    for name in ("pickled", "with_adapter", "sentences"):
        shutil.copytree(plain, made.root / "model" / name)
    code = made.root / "model" / "code"
    tiny_dialki(save_bert(made.root / "bert")).save(code)
    made.code(code, "code")
    classes = {"AutoConfig": "marking.MarkConfig", "AutoModelForCausalLM": "marking.Mark"}
    _change(code / "config.json", model_type="of_nobody", auto_map=classes)
    _change(code / "tokenizer_config.json", tokenizer_class="Mark", auto_map={"AutoTokenizer": ["marking.Mark", None]})
    _change(code / "reward_model.json", **asdict(RewardModelRecord("relevance", segmenter="marking")))
    pickled = made.root / "model" / "pickled"
    (pickled / "model.safetensors").unlink()
    made.pickle(pickled / "pytorch_model.bin", "weights")
    for name in ("with_adapter", "adapter"):
        adapter = made.root / "model" / name
        adapter.mkdir(exist_ok=True)
        record = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(code)}
        write_json(adapter / "adapter_config.json", {**record, "megatron_config": {}, "megatron_core": "marking"})
        made.pickle(adapter / "adapter_model.bin", "adapter")
    sentences = made.root / "model" / "sentences"
    made.code(sentences, "sentences")
    write_json(sentences / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "marking.Mark"}])


def _run(made: Strangers) -> None:
    """A run whose reward names a pickle, whose policy needs code, and whose texts would be HTML."""
    run = write_toy_run(made.root / "run")
    payload = made.pickle(run / "payload.npy", "target")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["_target_"] = "finegrained_rlhf.training.ppo.TrainPPO"
    reward = config["reward"]
    reward["_target_"] = "finegrained_rlhf.rewards.RewardConfig"
    component = {"_target_": "numpy.load", "file": str(payload), "allow_pickle": True}
    reward["components"] = dict.fromkeys(reward["components"], component)
    config["output_dir"] = config["data"] = SCRIPT
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    write_json(run / "run.json", {"step": 6, "finished": True, "reason": SCRIPT})
    for name in ("config.yaml", "run.json", "metrics.jsonl"):  # a run above all that lies here
        shutil.copyfile(run / name, made.root / name)
    shutil.copytree(made.root / "model" / "code", run / "policy", dirs_exist_ok=True)
    shutil.copytree(run / "policy", run / "model")
    shutil.copytree(run / "policy", run / "checkpoints" / "step_4" / "policy")
    for path in (run / "samples").glob("*.jsonl"):
        path.write_text(path.read_text().replace("Two", SCRIPT.replace('"', "'")))


def _index(made: Strangers) -> None:
    """An index whose record names a class as its kind, and one whose arrays are pickles."""
    corpus = made.root / "corpus.jsonl"
    write_lines(corpus, [{"id": str(n), "title": "T", "text": "Some words."} for n in range(4)])
    for name in ("named", "pickled"):
        Bm25Config().build(str(corpus), made.root / "index" / name)
    _change(made.root / "index" / "named" / "index.json", kind="marking.Mark", config={"_target_": "marking.Mark"})
    for path in (made.root / "index" / "pickled").rglob("*.npy"):
        made.pickle(path, "index")


def _memory(path: Path) -> None:
    """A file of SQLite with other tables, and a trigger that would load a library."""
    with sqlite3.connect(path) as file:
        file.execute(f"CREATE TABLE users (name TEXT DEFAULT '{SCRIPT.replace(chr(39), chr(34))}')")
        file.execute("CREATE VIEW events AS SELECT load_extension('marking') AS payload")
    file.close()
