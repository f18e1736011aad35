"""Floor 9: over HTTP, one web application (look at runs, play with rewards), and rewards that trainers ask for.

Knows the other packages; none of them knows it. Pages share styles, charts and heat maps with the offline reports.
Needs `pip install '.[web]'`.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, {"Serve": "serve"})
