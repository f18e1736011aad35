"""Imports go in no circle, tensors have their shapes in docstrings, and a command builds the class of its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from finegrained_rlhf.launch.commands import names
from finegrained_rlhf.launch.configurations import conf_file

ROOT = Path(__file__).parents[2]
FILES = {
    ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__"): path
    for top, package in ((ROOT, "finegrained_rlhf"), (ROOT, "reward_models"), (ROOT / "lab", "finegrained_lab"))
    for path in sorted((top / package).rglob("*.py"))
}


@cache
def tree(module: str) -> ast.Module:
    """What a module says."""
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def functions_of(module: str) -> Iterator[ast.FunctionDef]:
    """Its public functions."""
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node


def takes_tensors(node: ast.FunctionDef) -> bool:
    return re.search(r"\bTensor\b", ast.unparse(node.args)) is not None


def test_functions_that_take_tensors_state_their_shapes() -> None:
    """At least 95 of 100 public functions."""
    functions = [
        (f"{module}.{node.name}", ast.get_docstring(node) or "")
        for module in FILES
        for node in functions_of(module)
        if takes_tensors(node)
    ]
    silent = [name for name, text in functions if not re.search(r"\[|shape", text)]
    assert len(functions) > 50 and len(silent) <= 0.05 * len(functions), silent


def is_schema(node: ast.AST) -> bool:
    """Whether a class is a dataclass or a job: its methods import what they build or run, when they do."""
    return isinstance(node, ast.ClassDef) and (
        any("dataclass" in ast.unparse(name) for name in node.decorator_list)
        or any(isinstance(member, ast.FunctionDef) and member.name == "run" for member in node.body)
    )


def imports(node: ast.AST, *, of_schemas: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements below a node, those in functions and for type checkers too.

    Args:
        node: of a module.
        of_schemas: whether those in the methods of dataclasses and jobs count.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case) and (of_schemas or not is_schema(child)):
            yield from imports(child, of_schemas=of_schemas)


def imported(module: str, *, of_schemas: bool) -> set[str]:
    """The modules of ours that a module imports anywhere."""
    names: set[str] = set()
    for node in imports(tree(module), of_schemas=of_schemas):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module and not node.level:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {member if member in FILES else node.module for member in members}
    return names & FILES.keys() - {module}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle; empty where there is none."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str]:
        if module in path:
            return path[path.index(module) :]
        if module not in done:
            for other in sorted(graph.get(module, ())):
                if found := walk(other, [*path, module]):
                    return found
            done.add(module)
        return []

    return next((found for module in graph if (found := walk(module, []))), [])


def test_no_import_goes_in_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c"] and not circle({"a": {"b"}, "b": set()})
    assert not circle({module: imported(module, of_schemas=False) for module in FILES})
    launch = [module for module in FILES if module.startswith("finegrained_rlhf.launch")]
    assert not circle({module: imported(module, of_schemas=True) for module in launch})


def test_an_import_in_a_function_counts() -> None:
    assert "finegrained_rlhf.launch.app" in imported("finegrained_rlhf.launch.commands", of_schemas=False)
    job, runner = "finegrained_rlhf.training.ppo.job", "finegrained_rlhf.training.ppo.train"
    assert runner in imported(job, of_schemas=True) - imported(job, of_schemas=False)


def test_a_command_builds_the_class_of_its_name() -> None:
    """`x_y` runs the class XY; commands of several jobs, or of another command's, name no class."""
    targets = {}
    for name in names():
        config = conf_file(f"{name}.yaml").read_text(encoding="utf-8")
        target = re.search(r"^_target_: ([\w.]+)$", config, re.MULTILINE)
        targets[name] = None if target is None else target.group(1).rpartition(".")[2].lower()
    classes = {name: name.replace("_", "") for name in names()}
    assert targets == classes | dict.fromkeys(("doctor", "run_experiment", "sweep"))
