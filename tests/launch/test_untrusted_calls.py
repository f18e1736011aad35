"""What may be called where: whatever opens a file of somebody else goes through one place, which runs nothing of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

import pytest
from script_runs import ROOT

FROM_DISK = "finegrained_rlhf/models/from_disk.py"
OURS = ("finegrained_rlhf", "reward_models", "lab/finegrained_lab", "scripts", "benchmarks")
ALLOWED = {
    "from_pretrained": {
        FROM_DISK: "the one place",
        "benchmarks/plain_rewards.py": "the plain side of a comparison, on models that it made itself",
        "benchmarks/peer_trl.py": "a program for another environment, which cannot import the project",
    },
    ".load_adapter": {FROM_DISK: "the one place"},
    "SentenceTransformer": {FROM_DISK: "the one place"},
    "CrossEncoder": {FROM_DISK: "the one place"},
    "torch.load": {"finegrained_rlhf/models/encoders/conversions.py": "weights_only: tensors and plain containers"},
    "np.load": {
        "finegrained_rlhf/retrieval/passages.py": "arrays; numpy reads no pickle unless it is told to",
        "lab/finegrained_lab/experiments/qa_feedback/bottleneck_folds.py": "arrays that an earlier run of its own kept",
    },
    "spacy.load": {
        "finegrained_rlhf/text/segmentation.py": "a pipeline that the user names; a record may name no path"
    },
    "load_dataset": {
        "finegrained_rlhf/feedback/prompt_files.py": "tables of a snapshot; datasets from 4 on runs no script"
    },
    "yaml.load": {
        "finegrained_rlhf/launch/checks/help.py": "the safe loader, in C where there is one",
        "finegrained_rlhf/runtime/directory/run_directory.py": "the same",
    },
    "instantiate": {"finegrained_rlhf/launch/build.py": "after check_foreign, where the text is not the user's own"},
}
"""Calls that need a reason, the files that have one, and which."""
NEVER = {
    *("transformers.pipeline", "evaluate.load", "torch.hub.load", "unsafe_load", "full_load"),
    *("os.system", "eval", "exec", "__import__", "read_pickle", "runpy.run_path", "numpy.load"),
}
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
"""Modules whose files are programs."""


@dataclass(frozen=True)
class Source:
    """A file of ours: its syntax, and every call in it with what is called, as it is written."""

    tree: ast.Module
    calls: list[tuple[str, ast.Call]]


def written(node: ast.expr) -> str:
    """`ast.unparse`, whose making of one object for each name takes most of the time of this file."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute | ast.Call):
        return f"{written(node.value)}.{node.attr}"
    return ast.unparse(node)


@pytest.fixture(scope="module")
def sources() -> dict[str, Source]:
    found = {}
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = [(written(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
            found[path.relative_to(ROOT).as_posix()] = Source(tree, calls)
    return found


def is_named(written: str, name: str) -> bool:
    """Whether what is called is `name`: all of it where it has a dot inside or is Python's own, else its last part.

    A dot before it stands for any object whose method it is.
    """
    if name.startswith("."):
        return written.endswith(name)
    return written == name if "." in name or name in ("eval", "exec") else written.rpartition(".")[2] == name


def keywords(call: ast.Call) -> dict[str | None, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def test_what_opens_foreign_files_is_called_in_its_one_place(sources: dict[str, Source]) -> None:
    assert len(sources) > 300
    used: dict[str, set[str]] = {name: set() for name in ALLOWED}
    for file, source in sources.items():
        for written, call in source.calls:
            for name in used:
                if is_named(written, name):
                    assert file in ALLOWED[name], f"{file}, line {call.lineno}: {written}: see {FROM_DISK}"
                    used[name].add(file)
            assert not any(is_named(written, name) for name in NEVER), f"{file}, line {call.lineno}: {written}"
            assert "shell" not in keywords(call), f"{file}, line {call.lineno}: a shell"
            assert "allow_pickle" not in keywords(call), f"{file}, line {call.lineno}: pickles"
    for name, files in used.items():
        assert files == set(ALLOWED[name]), f"{name}: a reason is left over: {set(ALLOWED[name]) - files}"


def test_no_code_of_a_model_is_trusted(sources: dict[str, Source]) -> None:
    for file, source in sources.items():
        for written, call in source.calls:
            given = keywords(call)
            place = f"{file}, line {call.lineno}"
            assert given.get("trust_remote_code", "False") == "False", place
            if not any(is_named(written, name) for name in ("from_pretrained", "SentenceTransformer", "CrossEncoder")):
                continue
            kind = written.rpartition(".")[0]
            if kind in ("peft.PeftConfig", "peft.PeftModel", "GenerationConfig"):
                continue  # they know no such code
            safe = given.get(None) == "_SAFELY" or "**_SAFELY" in ast.unparse(call)
            assert "trust_remote_code" in given or (safe and file == FROM_DISK), place
    settings = next(
        node
        for node in sources[FROM_DISK].tree.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_SAFELY"
    )
    assert settings.value is not None
    assert ast.literal_eval(settings.value) == {"trust_remote_code": False, "local_files_only": True}


def test_no_pickle_is_read(sources: dict[str, Source]) -> None:
    reason = {"finegrained_rlhf/models/encoders/conversions.py": "the error of torch's restricted reader"}
    for file, source in sources.items():
        for node in ast.walk(source.tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            found = {name.partition(".")[0] for name in names} & MODULES
            assert not found or file in reason, f"{file}: {found}"
        for written, call in source.calls:
            if is_named(written, "torch.load"):
                assert keywords(call).get("weights_only") == "True", f"{file}, line {call.lineno}"
    [file] = reason
    read = [ast.unparse(node) for node in ast.walk(sources[file].tree) if isinstance(node, ast.Attribute)]
    assert [name for name in read if name.startswith("pickle.")] == ["pickle.UnpicklingError"]


def test_modules_are_imported_by_names_of_ours(sources: dict[str, Source]) -> None:
    """`import_module` of what a file holds would run a stranger's choice; here every name is written in the source."""
    reasons = {
        "finegrained_rlhf/annotation/tools.py": "a table of our own tools",
        "finegrained_rlhf/core/exports.py": "the doors of our packages",
        "finegrained_rlhf/core/extensions.py": "parts that an installed package lists, in modules of its own",
        "finegrained_rlhf/core/fields.py": "a class of ours whose settings are read, or the one that the user typed",
        "finegrained_rlhf/launch/build.py": "what the user typed, or check_foreign admits",
        "finegrained_rlhf/launch/checks/contents.py": "classes of a configuration that was built before",
        "finegrained_rlhf/metrics/__init__.py": "a table of our own metrics",
        "lab/finegrained_lab/protocols/prelude/similarity.py": "one package by its name",
        "lab/finegrained_lab/protocols/prelude/run.py": "two packages by their names",
        "finegrained_rlhf/retrieval/record.py": "a table of our own retrievers",
    }
    files = {
        f
        for f, source in sources.items()
        if f.startswith(("finegrained_rlhf", "reward_models", "lab"))
        for written, _ in source.calls
        if is_named(written, "import_module")
    }
    assert files == set(reasons)
