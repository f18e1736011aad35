"""Checks of what a run reads: configuration, data and models.

Trains nothing and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inference.inputs import read_prompts
from finegrained_rlhf.metrics.detection import uninformative
from finegrained_rlhf.metrics.stress import read_reports, weak_rewards
from finegrained_rlhf.models.config import ValueConfig
from finegrained_rlhf.models.loading import check_vocabulary, load_tokenizer, model_directory
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.value import SeparateValueModel, ValueModel
from finegrained_rlhf.preflight.doctor.case import Case, Finding, Status, explain
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.chat import PromptConfig, recorded_prompt

_FILES = ("data", "validation_data")
_NO_LIMIT = 1 << 30
_UNKNOWN_SHARE = (0.01, 0.2)
"""Shares of unknown tokens in the prompts from which on the tokenizer is suspected, and refused."""

# What to change when a scorer refuses its model, by words of its error.
_SCORER_REMEDIES = (
    ("labels each", "path: a model of that granularity; or .granularity: the model's, or null"),
    ("no mean and std", "mean and .std: of the model's raw scores on its training outputs"),
    ("use S", "path: a model of the scorer's kind; or ._target_: the scorer that the message names"),
    ("of which kind", "kind: what the model judges"),
)


# Configuration ------------------------------------------------------------------------------------------------------


def configuration(case: Case) -> Iterator[Finding]:
    """Every key has a value, every part can be built, and the parts fit each other."""
    for problem in case.problems:
        yield Finding("fail", problem.measured, problem.mend)
    if case.job is None:
        return
    reward = case.job.reward
    weights = ", ".join(f"{name} {float(weight):g}" for name, weight in reward.weights.items())
    moving = [name for place in (reward.schedule, reward.constraints) for name, part in place.items() if part.active]
    if not any(reward.weights.values()) and not moving:
        yield Finding("fail", f"all reward weights are 0: {weights}", "reward.weights.NAME: at least one other than 0")
    elif negative := [name for name, weight in reward.weights.items() if weight < 0]:
        remedy = f"reward.weights.{negative[0]} above 0, unless this is meant: scorers give errors a negative value"
        yield Finding("warn", f"a negative reward weight: {weights}", remedy)
    else:
        yield Finding("pass", f"all keys bind; weights {weights}")
    if case.job.total_steps and (schedule := case.job.optimizer.warmup_problem(case.job.total_steps)):
        yield Finding("warn", schedule, "optimizer.warmup_steps: fewer; or total_steps: more")


# Data ---------------------------------------------------------------------------------------------------------------


def _files(case: Case) -> dict[str, str]:
    return {key: str(case.keys[key]) for key in _FILES if case.keys.get(key) is not None}


def data(case: Case) -> Iterator[Finding]:
    """Prompt files can be read; how many records they hold, which occur twice, and which are in both."""
    texts: dict[str, list[str]] = {}
    for key, path in _files(case).items():
        try:
            texts[key] = [item.text for item in read_prompt_file(path)]
        except FineGrainedError as error:
            remedy = f"name another file with {key}=FILE, or correct this one{case.hint}"
            yield Finding("fail", f"{key}: {error}", remedy)
            continue
        twice = len(texts[key]) - len(set(texts[key]))
        what = f"{key}: {len(texts[key]):,} records, ids all different"
        if twice:
            yield Finding("warn", f"{what}, {twice:,} texts occur again", f"{key}: leave repeated prompts out")
        else:
            yield Finding("pass", what)
    if "data" not in case.keys:
        yield Finding("skipped", "data has no value")
    elif "validation_data" not in _files(case):
        remedy = "validation_data=FILE; without it the last policy is exported, not the best one"
        yield Finding("warn", "validation_data: none", remedy)
    if len(texts) == len(_FILES):
        both = sum(text in set(texts["data"]) for text in texts["validation_data"])
        if both:
            what = f"{both:,} of {len(texts['validation_data']):,} validation prompts are training prompts too"
            yield Finding("warn", what, "validation_data: a file without training prompts")


def prompts(case: Case) -> Iterator[Finding]:
    """Lengths of the prompts in tokens, and whether the policy's tokenizer knows their words."""
    policy = case.parts.get("policy")
    if policy is None:
        yield Finding("skipped", "needs policy.path")
        return
    directory = model_directory(policy.path, revision=policy.revision)
    tokenizer = load_tokenizer(directory)
    settings = case.parts.get("prompt", PromptConfig()).over(recorded_prompt(directory))
    limit, refuse = int(case.keys["max_prompt_tokens"]), case.keys["prompt_too_long"] == "refuse"
    for key, path in _files(case).items():
        read = case.prompts[key] = read_prompts(path, tokenizer, _NO_LIMIT, prompt=settings)
        lengths = [length for prompt in read for length in prompt.pieces or (len(prompt.input_ids),)]
        cut = sum(length > limit for length in lengths)
        each = " a passage" if len(lengths) > len(read) else ""
        what = f"{key}: {min(lengths)} to {max(lengths)} tokens{each}, {cut:,} of {len(lengths):,} longer than {limit}"
        remedy = f"max_prompt_tokens={max(lengths)} reads them whole"
        if cut and refuse:
            yield Finding("fail", what, f"{remedy}; prompt_too_long=truncate cuts them")
        elif cut:
            yield Finding("warn", f"{what}: their ends are cut off", remedy)
        else:
            yield Finding("pass", what)
    yield from _unknown(tokenizer, [prompt for read in case.prompts.values() for prompt in read])


def _unknown(tokenizer: Any, tokenized: Sequence[Prompt]) -> Iterator[Finding]:
    if tokenizer.unk_token_id is None:
        return
    ids = [token for prompt in tokenized for token in prompt.input_ids]
    share = ids.count(tokenizer.unk_token_id) / max(len(ids), 1)
    suspicious, wrong = _UNKNOWN_SHARE
    if share > suspicious:
        remedy = "policy.path: a policy whose tokenizer was made for this text; or other data"
        what = f"{share:.1%} of the prompts' tokens are unknown to the policy's tokenizer"
        yield Finding("fail" if share > wrong else "warn", what, remedy)


# Models -------------------------------------------------------------------------------------------------------------


def models(case: Case) -> Iterator[Finding]:
    """Policy, value model and reward models open, hold numbers, and fit each other, their tokenizer and their use."""
    policy: Policy | None = None
    if "policy" in case.parts:
        try:
            policy = case.parts["policy"].load("cpu")
            yield _policy(policy, [p.input_ids for of_file in case.prompts.values() for p in of_file])
        except Exception as error:
            yield Finding("fail", f"policy: {explain(error)}", f"policy.path: a model or run directory{case.hint}")
    if policy is not None and "value" in case.parts:
        config = case.parts["value"]
        try:
            yield _value(config.load(policy), policy, config)
        except Exception as error:
            remedy = "value.path: a model with the policy's kind of architecture and vocabulary, or value=shared"
            yield Finding("fail", f"value: {explain(error)}", f"{remedy}{case.hint}")
    for name, scorer in case.scorers.items():
        try:
            scorer.setup(case.processes.device)
            yield _scorer(name, scorer)
            if why := uninformative(_trust(scorer)):
                remedy = f"reward.components.{name}.path: a model that was trained longer, or on more labels"
                yield Finding("warn", f"{name}: by its trust.json it {why}", remedy)
        except Exception as error:
            yield Finding("fail", f"{name}: {explain(error)}", f"{_scorer_remedy(name, str(error))}{case.hint}")


def stress_test(case: Case) -> Iterator[Finding]:
    """The reward models were attacked, and their `stress.json` says nothing against training on them."""
    reports = read_reports(case.scorers)
    if without := [name for name, values in reports.items() if values is None]:
        remedy = "finegrained stress-test with this reward and a feedback or prompt file with gold answers"
        yield Finding("skipped", f"there is no stress.json beside the model of {', '.join(without)}", remedy)
    for name, weak in weak_rewards(reports).items():
        allowed = bool(case.keys.get("allow_weak_rewards"))
        for one in weak:
            remedy = "a reward model that passes; allow_weak_rewards=true trains on this one"
            status: Status = "fail" if one.severe and not allowed else "warn"
            yield Finding(status, f"{name}: by its stress.json {one.words}", "" if allowed else remedy)
        if not weak:
            yield Finding("pass", f"{name}: its stress.json speaks for it")


def _size(module: nn.Module) -> str:
    """Class and size of a model.

    Raises:
        ConfigError: a weight is not a number.
    """
    for name, parameter in module.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise ConfigError(f"the weights of {name} are not all finite numbers")
    count = sum(parameter.numel() for parameter in module.parameters())
    return f"{count / 1e6:,.1f} M parameters" if count >= 1e6 else f"{count:,} parameters"


def _policy(policy: Policy, prompt_ids: Sequence[Sequence[int]]) -> Finding:
    check_vocabulary(policy, prompt_ids)
    model, tokenizer = policy.model, policy.tokenizer
    rows = model.get_input_embeddings().weight.shape[0]
    what = f"policy: {type(model).__name__}, {_size(model)}, {rows:,} embeddings, tokenizer of {len(tokenizer):,}"
    remedy = "policy.path: a directory whose tokenizer belongs to its model"
    if len(tokenizer) > rows:
        return Finding("fail", f"{what}: the tokenizer knows ids that the model has no embedding for", remedy)
    for name in ("eos_token_id", "pad_token_id"):
        of_model, of_tokenizer = getattr(model.config, name, None), getattr(tokenizer, name)
        if (
            of_model is not None
            and of_tokenizer is not None
            and of_tokenizer not in (of_model if isinstance(of_model, list) else [of_model])
        ):
            return Finding(
                "fail", f"{what}: {name} is {of_model} in the model and {of_tokenizer} in the tokenizer", remedy
            )
    return Finding("pass", what)


def _value(value: ValueModel | None, policy: Policy, config: ValueConfig) -> Finding:
    if value is None:
        return Finding("pass", "value: none, the algorithm learns no values")
    if not isinstance(value, SeparateValueModel) or config.path is None:
        return Finding("pass", "value: a head on the policy's trunk")
    what = f"value: {type(value.backbone).__name__}, {_size(value)}"
    try:
        vocabulary = load_tokenizer(model_directory(config.path, revision=config.revision)).get_vocab()
    except FineGrainedError:
        return Finding("pass", f"{what}; no tokenizer beside it to compare with the policy's")
    if vocabulary != policy.tokenizer.get_vocab():
        remedy = "value.path: a model with the policy's tokenizer, so that it knows the tokens it reads"
        return Finding("warn", f"{what}; its tokenizer is not the policy's: it reads the ids as other words", remedy)
    return Finding("pass", f"{what}, with the policy's tokenizer")


def _scorer(name: str, scorer: Any) -> Finding:
    what = f"{name}: {type(scorer).__name__}"
    model = getattr(scorer, "model", None)
    if isinstance(model, nn.Module):
        record = getattr(model, "record", None)
        kind = f"{record.kind} model, " if record is not None else ""
        what = f"{what}, {kind}{_size(model)}"
    for key in ("granularity", "mean", "std"):
        if (value := getattr(scorer, key, None)) is not None:
            what += f", {key} {value:.3g}" if isinstance(value, float) else f", {key} {value}"
    return Finding("pass", what)


def _trust(scorer: Any) -> Mapping[str, Any]:
    """What the run of a reward model says of its quality; empty where it says nothing."""
    path = getattr(scorer, "path", None)
    if not isinstance(path, str):
        return {}
    files = (RunDirectory(folder).trust for folder in (Path(path), Path(path).parent))
    file = next((file for file in files if file.is_file()), None)
    trust = None if file is None else read_json(file)
    return trust if isinstance(trust, Mapping) else {}


def _scorer_remedy(name: str, problem: str) -> str:
    """The keys of a component that its error is about; its path where the words are not known."""
    known = next((remedy for words, remedy in _SCORER_REMEDIES if words in problem), None)
    return f"reward.components.{name}.{known or 'path: a reward model of the kind that the scorer reads'}"
