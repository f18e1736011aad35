"""Floor 8: from a command line to a job. The only room that knows Hydra and omegaconf.

`commands` names the commands, `app` runs one of them, `checks` refuses a wrong configuration before anything is made,
`steps` prepares, builds and runs what a configuration describes, `pipeline` runs many of them and `sweeps` one of them
for many values; `finished` knows which of either are done. A job never learns where its configuration came from.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "PointEvaluation": "sweeps.point",
        "SharedKeys": "sweeps.points",
        "SweepCallback": "sweeps.callback",
        "SweepSettings": "sweeps.point",
    },
)
