"""Protocols of papers on learning at use time: rounds of agents with simulated users, and what they are measured by.

What learns is `finegrained_rlhf.personalization`.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BertScore": "prelude.similarity",
        "MakeDisambigDocs": "coreset.ambigdocs",
        "MakePreludeContexts": "prelude.inputs.documents",
        "ModelEditor": "prelude.users",
        "ModelUser": "pahf.users",
        "RunCoreset": "coreset.run",
        "RunPahf": "pahf.run",
        "RunPrelude": "prelude.run",
        "ScriptedUser": "pahf.users",
        "ShoppingUser": "pahf.shopping",
    },
)
