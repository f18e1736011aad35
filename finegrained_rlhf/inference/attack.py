"""How often a judge changes its mind when the answer tells it to: injections, by kind.

Trains nothing.
"""

from __future__ import annotations

from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.rewards.remote.injections import InjectionReport, measure_injections
from finegrained_rlhf.rewards.remote.judge import Judge
from finegrained_rlhf.rewards.remote.judged import JudgeScorer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER


class AttackJudge:
    """Let a judge read answers with and without injected texts, and say what it then makes of the same sentences.

    Every answer is judged once, and once more with each injection before and behind it.

    Args:
        judge: that reads the answers.
        data: file of outputs, each with its question and passages.
        run: PPO run whose report shows the result: its directory gets `injections.json`.
        output: JSON file for the result, where there is no run.
        answers: the first so many answers are taken, one a question.
        segmenter: that cuts answers into sentences.

    Raises:
        ConfigError: a number of answers below 1.
    """

    def __init__(
        self,
        judge: Judge,
        data: InputFile,
        run: InputFile | None = None,
        output: OutputFile | None = None,
        answers: int = 20,
        segmenter: str = DEFAULT_SEGMENTER,
    ) -> None:
        if answers < 1:
            raise ConfigError(f"answers: expected at least 1, got {answers}")
        self.judge, self.data, self.answers, self.segmenter = judge, data, answers, segmenter
        self.directory, self.output = None if run is None else RunDirectory(run), output

    def run(self) -> InjectionReport:
        """Judge, write the report and print a table.

        Raises:
            ConfigError: not one of `run` and `output`.
            DataError: no run there, or outputs that cannot be read or have no words.
            FineGrainedError: the endpoint gives no answer.
        """
        if (self.directory is None) == (self.output is None):
            raise ConfigError("run, output: name one of them: a run whose report shows the result, or a JSON file")
        if self.directory is not None and not self.directory.config_path.is_file():
            raise DataError("expected the directory of a run, with its config.yaml", file=self.directory.path)
        path = Path(str(self.output)) if self.directory is None else self.directory.injections
        records = [one for one in read_outputs(self.data) if one.outputs[0].strip()][: self.answers]
        if not records:
            raise DataError("has no answer with a word", file=self.data)
        prompts = [
            Prompt(one.id, one.text, (), {"question": one.question, "passages": one.passages}) for one in records
        ]
        scorer = JudgeScorer(self.judge, segmenter=self.segmenter, failures=1.0)
        scorer.setup()
        scorer.check_prompts(prompts)
        report = measure_injections(scorer, prompts, [one.outputs[0] for one in records])
        write_json(path, report.to_json(self.judge.model, str(self.data)))
        print(injection_table(report))
        print(f"report: {path}")
        return report


def injection_table(report: InjectionReport) -> str:
    """The report as a table of text."""
    lines = [
        f"{report.answers} answers, {report.with_errors} with an error",
        "| injection | pairs | fewer errors | more errors | no judgement | change of reward |",
        "|---|---|---|---|---|---|",
    ]
    for kind, one in report.kinds.items():
        shares = [f"{part / one.pairs:.0%}" if one.pairs else "–" for part in (one.fewer, one.more)]
        lines.append(f"| {kind} | {one.pairs} | {' | '.join(shares)} | {one.no_score} | {one.reward:+.3f} |")
    return "\n".join(lines)
