"""The commands by task, and the one way into each: `finegrained train-ppo`, `scripts/train_ppo.py`, `python -m`.

Imports nothing heavy: Ctrl-C is one line from the first moment, and `finegrained --help` is there at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from finegrained_rlhf.launch.plain_words import with_keys

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Train": {
        "train_sft": "fine-tune a policy on reference answers",
        "train_classifier": "train a classifier of texts, whose probability can be a reward",
        "train_gedi": "train a class-conditional language model, with which GeDi steers a policy",
        "train_reward_model": "train one of the four reward models on span feedback or preferences",
        "train_ppo": "train a policy by PPO on token rewards from reward models",
        "train_dpr": "train the two towers of dense passage retrieval",
        "train_dialki": "train DIALKI to find the knowledge of a dialogue's next turn",
        "train_conqrr": "train a query rewriter, supervised or by retrieval reward",
    },
    "Check a run before it starts": {
        "doctor": "check a PPO run's configuration, data, models and machine",
        "inspect_feedback": "say what a feedback file holds",
        "inspect_prompts": "say what a file of RealToxicityPrompts holds",
        "inspect_inscit": "say what a file of INSCIT holds",
    },
    "Many runs": {
        "sweep": "train, evaluate and compare a policy for every combination of values",
        "run_experiment": "run an experiment of several steps",
    },
    "Use a trained model": {
        "generate": "stream a policy's answers to a file of prompts, or to standard input",
        "sample_outputs": "sample several outputs a prompt, for annotation",
        "export": "copy a run's model with a model card, and push it to the Hub",
        "identify_knowledge": "find the knowledge that the next answer of a dialogue rests on",
        "identify_evidence": "predict the evidence of INSCIT's turns with a trained DIALKI",
        "generate_responses": "answer dialogues: DIALKI finds, a generator writes",
        "rewrite": "rewrite questions in dialogues so that they stand alone",
        "rewrite_few_shot": "rewrite them by a language model with a few demonstrations",
    },
    "Measure": {
        "evaluate": "measure a policy, or a file of outputs",
        "evaluate_reward_model": "measure a reward model on a feedback file",
        "evaluate_dialki": "measure how well a trained DIALKI finds knowledge",
        "evaluate_detox": "measure how toxic, fluent and varied continuations are",
        "evaluate_inscit": "score predictions for INSCIT, or a baseline",
        "evaluate_response_types": "measure how well a classifier tells INSCIT's response types",
        "evaluate_rewrites": "measure rewrites by what a retriever finds with them",
        "evaluate_scai": "score a run of the SCAI-QReCC shared task",
        "run_prelude": "run agents that learn from a user's edits, and say what the edits cost",
        "run_pahf": "run an agent that asks and is corrected through PAHF's four phases",
        "measure_regret": "measure the regret of PAHF's policies beside formulas and bounds",
        "show_user_memory": "show what is remembered of a user, from what, and when it was used",
        "catch_up": "list what a user did or said that was not learnt from, and learn from it again",
        "run_coreset": "run agents that are told which of several entities is meant, and say how right they are",
        "measure_drift": "measure how far reward models agree with the oracle during a run",
        "attack_judge": "measure how often a judge changes its mind where an answer tells it to",
        "reweigh": "say how a run's kept rollouts rank under another reward",
        "report": "write one HTML page about a run, or about several",
        "runs": "list every run below a directory: state, step, score, age",
        "compare": "compare runs as text: configurations, scores at the exported policies",
    },
    "Feedback from people": {
        "make_annotation_tasks": "make annotation tasks of sampled outputs, a page for each annotator",
        "read_annotations": "read what annotators exported, checked against the tasks",
        "measure_agreement": "measure how far annotators agree, and show where they do not",
        "adjudicate": "make feedback records of annotations",
        "edits_to_feedback": "write users' edits of drafts as span feedback",
        "read_public_feedback": "read public span feedback: RAGTruth, FavaBench, PRM800K, MQM",
        "make_human_evaluation": "make tasks for people who rate INSCIT's systems",
        "read_human_evaluation": "read what raters of INSCIT's systems exported",
        "score_human_evaluation": "score ratings: means, who wins, how far raters agree",
        "simulate_annotators": "annotate the tasks of a FactWorld project as people would",
    },
    "Data and indexes": {
        "make_factworld": "make a FactWorld",
        "annotate_factworld": "annotate sampled FactWorld answers as people would",
        "make_dialogue_world": "make a DialogueWorld",
        "make_rewrite_world": "make a RewriteWorld",
        "make_tone_world": "make a ToneWorld",
        "make_inscit_world": "make an InscitWorld",
        "make_style_world": "make a StyleWorld",
        "make_prelude_contexts": "make PRELUDE's rounds of your own documents",
        "make_pahf_world": "make a PahfWorld",
        "make_bios_world": "make a BiosWorld",
        "make_disambig_docs": "make conversations of AmbigDocs",
        "make_response_data": "make prompt files for response generation from dialogues",
        "retrieve_evidence": "search an index for every turn of INSCIT",
        "make_dpr_data": "make what a dense retriever learns from, of INSCIT's turns",
        "make_question_dpr_data": "make what a dense retriever learns from, of questions in dialogues",
        "make_identifier_data": "make dialogues of INSCIT's turns and their candidates, for DIALKI",
        "make_reader_inputs": "make the prompts of a reader of INSCIT: conversation and passages",
        "read_reader_outputs": "read what a reader of INSCIT said as predictions",
        "make_response_types": "make texts of INSCIT's turns with their response type, for a classifier",
        "make_tiny_models": "build tiny models and tokenizers from a corpus",
        "make_longformer": "make a Longformer of a BERT or RoBERTa",
        "convert_dpr": "make two towers of a checkpoint of Facebook's DPR",
        "prepare_models": "make model directories of pretrained weights that packages carry",
        "make_corpus": "make a corpus of pages of Wikipedia",
        "build_index": "index a corpus of passages",
        "search": "search an index",
        "fuse_runs": "fuse TREC runs into one by reciprocal rank",
        "label_passages": "label passages for the questions of dialogues",
    },
}
"""What each command does, by task and name; each has a `conf/NAME.yaml` and a `scripts/NAME.py`."""

NAMES = tuple(name for group in COMMANDS.values() for name in group)

PLAIN_WORDS = {"runs": ("directory", False), "compare": ("runs", True)}
"""Commands whose arguments need no key: the key that plain words are given to, and whether they make a list."""

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
    try:
        _find_modules(of_script=name is not None)
        if name is None:
            name = _named(sys.argv[1:])
            sys.argv[:2] = [sys.argv[0]]
        if name in PLAIN_WORDS:
            key, several = PLAIN_WORDS[name]
            sys.argv[1:] = with_keys(sys.argv[1:], key, several=several)
        from finegrained_rlhf.launch.app import run_command

        run_command(name)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `--help | head`: whoever read standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)


def conf_directory() -> Path:
    """Where the configurations are: the copy in an installed wheel, or `conf/` of a checkout.

    Raises:
        FileNotFoundError: there is neither; the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "conf", package.parent / "conf"):
        if (directory / "app.yaml").is_file():
            return directory
    raise FileNotFoundError(f"no configurations: neither {package.parent / 'conf'} nor {package / 'conf'} exists")


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
        print(_COMPLETION % " ".join(name.replace("_", "-") for name in NAMES))
        sys.exit(0)
    name = word.replace("-", "_")
    if name not in NAMES:
        from difflib import get_close_matches

        near = get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0].replace('_', '-')}?" if near else "finegrained --help lists the commands"
        print(f"error: no command {word!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    return name


def overview() -> str:
    """What `finegrained --help` prints."""
    width = max(map(len, NAMES))
    lines = ["finegrained COMMAND KEY=VALUE …   (finegrained COMMAND --help explains the keys of a command)"]
    for task, commands in COMMANDS.items():
        lines += ["", task, *(f"  {name.replace('_', '-'):<{width}}  {what}" for name, what in commands.items())]
    lines += [
        "",
        "Several processes: accelerate launch -m finegrained_rlhf.launch train_ppo KEY=VALUE …",
        'Tab completion in bash: eval "$(finegrained --completion)"',
    ]
    return "\n".join(lines)
