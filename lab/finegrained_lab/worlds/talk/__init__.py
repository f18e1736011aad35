"""TalkWorld: conversations of a policy with a tool, in which one turn of each is demonstrated wrongly.

The tool asks for one call after the other; each turn makes one. What is wrong is known of every turn alone.
"""

from finegrained_lab.worlds.talk.make import KINDS, MakeTalkWorld, TalkTool
from finegrained_lab.worlds.talk.oracle import TURNS, TurnVerdicts, verdict, verdicts

__all__ = ["KINDS", "TURNS", "MakeTalkWorld", "TalkTool", "TurnVerdicts", "verdict", "verdicts"]
