"""The jobs that make one encoder of another: a Longformer of a BERT, two towers of a checkpoint of DPR."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory


@dataclass(frozen=True)
class MakeLongformer(Settings):
    """What `finegrained make-longformer` runs.

    A text whose tokens all lie in each other's windows (no more than window / 2 + 1 of them) gets the hidden states of
    the source, with and without global tokens; in a longer one a token sees its window and the global tokens alone.
    Behind the source's own length, positions repeat, and nothing has been trained on them yet.

    Attributes:
        model: directory or Hub name of a BERT or RoBERTa.
        output_dir: where the Longformer and its tokenizer are written.
        max_length: longest input of the Longformer in tokens, at least the source's.
        window: keys that a token sees beside its own, half of them on each side; null takes twice the source's length,
            so that every text that the source can read is covered. The paper's Longformer-base has 512.
    """

    model: ModelName
    output_dir: OutputDirectory
    max_length: int = 2048
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and (self.window < 2 or self.window % 2):
            raise ConfigError(f"window: expected null or an even number of at least 2, got {self.window}")

    def run(self) -> Path:
        """Make it; prints what its window covers.

        Raises:
            ModelError: `model` is no BERT or RoBERTa with a table of positions.
            ConfigError: `max_length` is less than the source reads.
        """
        from finegrained_rlhf.models.encoders.conversions import make_longformer

        return make_longformer(self)


@dataclass(frozen=True)
class ConvertDPR(Settings):
    """What `finegrained convert-dpr` runs: `output_dir/query` and `output_dir/passage` of a checkpoint.

    Attributes:
        checkpoint: file that DPR's `train_dense_encoder.py` wrote, or a published one of its form.
        model: directory or Hub name of the BERT whose configuration and tokenizer the towers have.
        output_dir: where the two directories are written, both or none.
    """

    checkpoint: InputFile
    model: ModelName
    output_dir: OutputDirectory

    def run(self) -> Path:
        """Convert; prints how large the towers are.

        Raises:
            ModelError: the file is missing, damaged, holds anything but weights and plain values, or its weights are
                not those of two BERTs of the configuration of `model`.
        """
        from finegrained_rlhf.models.encoders.conversions import convert_dpr

        return convert_dpr(self)
