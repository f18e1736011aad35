"""What collecting feedback from people shows, on worlds whose truth is known."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__, {"FeedbackLoopTable": "loop", "JoinFeedback": "join", "SelectionTable": "selection"}
)
