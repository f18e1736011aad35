"""A server that scores responses for trainers on this machine and others; the client is `rewards/served.py`."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"ServeRewards": "job"})
