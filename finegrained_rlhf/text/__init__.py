"""Text without a model: segmentation, alignment with tokens, prompt and chat templates, scores."""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"FusionConfig": "chat", "PromptConfig": "chat"})
