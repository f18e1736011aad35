"""Floor 5: what can be said before a run starts."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "DoctorConfig": "doctor.config",
    },
)
