"""The commands by task, and the way into all of them: `finegrained train-ppo KEY=VALUE …`.

`python -m finegrained_rlhf train-ppo`, `accelerate launch -m finegrained_rlhf train-ppo` and the few files in
`scripts/` come here too. Imports nothing heavy: Ctrl-C is one line from the first moment, and `finegrained --help` is
there at once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from finegrained_rlhf.core.extensions import extensions
from finegrained_rlhf.launch.configurations import typed
from finegrained_rlhf.launch.plain_words import with_keys, with_long_keys, with_texts

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Begin": {
        "init": "make a project of a file of data",
        "try": "run a project on ten records",
    },
    "Train": {
        "train_sft": "fine-tune a policy on reference answers",
        "train_reward_model": "train a reward model of one kind of error",
        "train_ppo": "train a policy by PPO on rewards for tokens",
        "train_classifier": "train a classifier of texts, for use as a reward",
        "train_gedi": "train a class-conditional language model for GeDi",
        "train_dpr": "train the two towers of dense passage retrieval",
        "train_dialki": "train DIALKI to find the knowledge of the next turn",
        "train_conqrr": "train a query rewriter, also by retrieval reward",
    },
    "Check before a run": {
        "doctor": "check a PPO run: settings, data, models, machine",
        "stress_test": "attack a reward with answers whose faults are known",
        "inspect_feedback": "say what a feedback file holds",
        "inspect_prompts": "say what a file of RealToxicityPrompts holds",
    },
    "Many runs": {
        "sweep": "train and compare policies over values of keys",
        "run_experiment": "run an experiment of several steps",
    },
    "Look at runs": {
        "serve": "look at runs in the browser while they train",
        "report": "write one HTML page about a run, or about several",
        "runs": "list the runs below a directory: state, step, score",
        "compare": "compare runs as text: configurations and scores",
        "reweigh": "rank a run's kept rollouts under another reward",
    },
    "Use a model": {
        "ask": "answer from a folder of documents, with citations",
        "generate": "stream a policy's answers to prompts",
        "sample_outputs": "sample several outputs a prompt, for annotation",
        "export": "copy a run's model with a card; push it to the Hub",
        "serve_rewards": "score responses for trainers over HTTP",
        "identify_knowledge": "find the knowledge that the next answer rests on",
        "generate_responses": "answer dialogues: DIALKI finds, a generator writes",
        "rewrite": "rewrite questions of dialogues to stand alone",
    },
    "Measure": {
        "evaluate": "measure a policy, or a file of outputs",
        "evaluate_reward_model": "measure a reward model on a feedback file",
        "evaluate_dialki": "measure how well a trained DIALKI finds knowledge",
        "evaluate_detox": "measure continuations: toxicity, fluency, variety",
        "evaluate_rewrites": "measure rewrites by what a retriever finds with them",
        "evaluate_judge": "measure a judge behind an endpoint on a feedback file",
        "attack_judge": "measure how often a judge obeys an answer",
    },
    "Feedback from people": {
        "make_annotation_tasks": "make a page of annotation tasks for each annotator",
        "read_annotations": "read and check what annotators exported",
        "measure_agreement": "measure how far annotators agree, and where not",
        "adjudicate": "make feedback records of annotations",
        "edits_to_feedback": "write users' edits of drafts as span feedback",
    },
    "Learn from users at use time": {
        "show_user_memory": "show what is remembered of a user, and from what",
        "serve_memory": "give an assistant the notes of a user (MCP)",
        "user_notes": "correct, delete, hold, export notes of a user",
        "catch_up": "list and learn from events that were not learnt from",
    },
    "Retrieval": {
        "build_index": "index a corpus of passages",
        "search": "search an index",
        "fuse_runs": "fuse TREC runs into one by reciprocal rank",
        "label_passages": "label passages for the questions of dialogues",
        "make_question_dpr_data": "make training data of one from dialogues' questions",
        "convert_dpr": "make two towers of a checkpoint of Facebook's DPR",
    },
    "Data and models to begin with": {
        "make_response_data": "make prompts for response generation from dialogues",
        "make_tiny_models": "build tiny models and tokenizers from a corpus",
        "make_longformer": "make a Longformer of a BERT or RoBERTa",
    },
    "Generated worlds": {
        "make_factworld": "make a FactWorld: questions, passages, known errors",
        "annotate_factworld": "annotate sampled FactWorld answers as people would",
    },
}
"""What each command does, by task and name; each has a `conf/NAME.yaml`."""

NAMES = tuple(name for group in COMMANDS.values() for name in group)
"""Commands of the library itself."""

LEFT = (
    *("evaluate_inscit", "evaluate_response_types", "evaluate_scai", "identify_evidence", "inspect_inscit"),
    *("make_corpus", "make_dpr_data", "make_identifier_data", "make_reader_inputs", "make_response_types"),
    *("read_public_feedback", "read_reader_outputs", "retrieve_evidence", "rewrite_few_shot"),
    *(f"{do}_human_evaluation" for do in ("make", "read", "score")),
)
"""Commands that were the library's and are the laboratory's."""

PLAIN_WORDS = {
    "compare": ("runs", True),
    "runs": ("directory", False),
    "serve": ("directory", False),
    "try": ("name", False),
}
"""Commands whose arguments need no key: the key that plain words are given to, and whether they make a list."""

LONG_KEYS = {"init": {"reward": "reward_from", "policy": "policy_path", "judge": "judge_name"}}
"""Commands with keys that are typed as a group is called: the key in their configuration by what is typed."""

TEXT_KEYS = {"ask": ("question",)}
"""Keys of commands whose value is a text as it was typed, whatever marks are in it."""

_COMPLETION = """_finegrained_complete()
{
    local word=${COMP_WORDS[COMP_CWORD]}
    if (( COMP_CWORD == 1 )); then
        COMPREPLY=($(compgen -W "%s --help" -- "$word"))
        return
    fi
    local line="finegrained ${COMP_LINE#*"${COMP_WORDS[1]}"}"
    local choices=$(COMP_LINE="$line" finegrained "${COMP_WORDS[1]}" -sc query=bash 2> /dev/null)
    COMPREPLY=($(compgen -o nospace -o default -W "$choices" -- "$word"))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _finegrained_complete finegrained"""


def main(name: str | None = None) -> None:
    """Run a command and end the process: exit status 0 done, 1 something failed, 2 the user's mistake, 130 Ctrl-C.

    Args:
        name: of the command; None takes it from the command line, dashes or underscores.
    """
    gc.disable()  # until the job runs: what imports and compositions make stays, and looking for garbage takes time
    try:
        _find_modules(of_script=name is not None)
        if name is None:
            name = _named(sys.argv[1:])
            sys.argv[:2] = [typed(name)]
        sys.argv[1:] = as_keys(name, sys.argv[1:])
        _import_omegaconf()
        from finegrained_rlhf.launch.app import run_command

        with heard_interrupts():
            run_command(name)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `--help | head`: whoever read standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)


@contextmanager
def heard_interrupts() -> Iterator[None]:
    """Ctrl-C is not lost: Python drops it where it falls into a callback of the garbage collector or a weak reference.

    What Python would only print comes again a moment later, until it falls into code that an exception ends.
    """
    before = sys.unraisablehook

    def again(dropped: sys.UnraisableHookArgs) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            before(dropped)
            return
        threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGINT]).start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def as_keys(name: str, arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with its plain words and short keys as its configuration has them."""
    if name in PLAIN_WORDS:
        key, several = PLAIN_WORDS[name]
        arguments = with_keys(arguments, key, several=several)
    return with_texts(with_long_keys(arguments, LONG_KEYS.get(name, {})), TEXT_KEYS.get(name, ()))


def _import_omegaconf() -> None:
    """Import omegaconf as where `attrs` is not installed: a twentieth of what `--help` takes.

    It would know configurations that are classes of attrs; ours are files.
    """
    if "attr" not in sys.modules:
        sys.modules["attr"] = None  # type: ignore[assignment]  # what a package that is absent looks like
        try:
            import omegaconf  # noqa: F401
        finally:
            del sys.modules["attr"]


@cache
def all_commands() -> Mapping[str, Mapping[str, str]]:
    """What each command does, by task and name, with the commands of packages that join behind those of their task."""
    tasks = {task: dict(commands) for task, commands in COMMANDS.items()}
    for extension in extensions():
        for task, commands in extension.commands.items():
            new = {name: what for name, what in commands.items() if name not in NAMES}
            tasks[task] = {**tasks.get(task, {}), **new}
    return tasks


def names() -> tuple[str, ...]:
    """Every command by name."""
    return tuple(name for commands in all_commands().values() for name in commands)


def _find_modules(*, of_script: bool) -> None:
    """Let a user's own modules (`_target_: my_rewards.Politeness`) be found in the working directory.

    Python looks beside a script first, where scripts/evaluate.py would hide the package of that name: last here.
    """
    first = sys.path[0] if of_script else None
    if first is not None and Path(first or ".").resolve() == Path(sys.argv[0]).resolve().parent:
        sys.path.append(sys.path.pop(0))
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _named(arguments: list[str]) -> str:
    word = arguments[0] if arguments else "--help"
    if word in ("--help", "-h", "help"):
        print(overview())
        sys.exit(0)
    if word == "--completion":
        print(_COMPLETION % " ".join(name.replace("_", "-") for name in names()))
        sys.exit(0)
    name = word.replace("-", "_")
    if name not in names():
        from difflib import get_close_matches

        near = get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0].replace('_', '-')}?" if near else "finegrained --help lists the commands"
        if name in LEFT:
            hint = "it is the laboratory's: pip install -e lab in a checkout"
        print(f"error: no command {word!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    return name


def overview() -> str:
    """What `finegrained --help` prints, in 80 columns."""
    width = max(map(len, names()))
    lines = ["finegrained COMMAND KEY=VALUE …", "finegrained COMMAND --help explains a command and its keys"]
    for task, commands in all_commands().items():
        lines += ["", task, *(f"  {name.replace('_', '-'):<{width}}  {what}" for name, what in commands.items())]
    lines += [
        "",
        "Several processes: accelerate launch -m finegrained_rlhf COMMAND KEY=VALUE …",
        'Tab completion in bash: eval "$(finegrained --completion)"',
    ]
    return "\n".join(lines)
