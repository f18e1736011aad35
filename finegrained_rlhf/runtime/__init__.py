"""Floor 2: run directory, checkpoints and resume, metric sinks, processes and the loop that every trainer shares."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "AdafactorConfig": "optimizer",
        "EndpointGenerator": "remote.chat",
        "OptimizerConfig": "optimizer",
        "ProcessConfig": "process_config",
        "RemoteConfig": "remote.client",
        "TrackingConfig": "sinks",
    },
)
