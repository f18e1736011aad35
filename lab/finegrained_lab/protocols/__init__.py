"""How papers measure: rounds of agents that learn from simulated users, and the human evaluation of INSCIT's systems.

What learns is `finegrained_rlhf.personalization`.
"""

from finegrained_rlhf.core.exports import lazy_exports

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BertScore": "prelude.similarity",
        "MakeDisambigDocs": "coreset.ambigdocs",
        "MakeHumanEvaluation": "human.tasks",
        "MakePreludeContexts": "prelude.inputs.documents",
        "ModelEditor": "prelude.users",
        "ModelUser": "pahf.users",
        "ReadHumanEvaluation": "human.tasks",
        "RunCoreset": "coreset.run",
        "RunPahf": "pahf.run",
        "RunPrelude": "prelude.run",
        "ScoreHumanEvaluation": "human.ratings",
        "ScriptedUser": "pahf.users",
        "ShoppingUser": "pahf.shopping",
    },
)
