"""Reports: one self-contained HTML page a run or a sweep, readable from disk without a network.

Knows the files of run directories and how to draw them. Knows no task and no Hydra; computes no reward.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Compare": "write",
        "Export": "export",
        "Runs": "console",
        "StressTest": "stress.job",
        "StressTestConfig": "stress.job",
        "ParetoAxes": "sweeps.results",
        "Report": "write",
        "SweepTable": "sweeps.results",
    },
)
