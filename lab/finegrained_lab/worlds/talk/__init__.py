"""TalkWorld: conversations of a policy with a tool, in which one turn of each is demonstrated wrongly.

The tool asks for one call after the other; each turn makes one. The first two thirds of a conversation are luck; in the
rest each turn can be right, and one is the wrong one of the demonstrations.
"""

from finegrained_lab.worlds.talk.make import MakeTalkWorld, TalkTool
from finegrained_lab.worlds.talk.oracle import KINDS, TURNS, TurnVerdicts, is_luck, verdict, verdicts

__all__ = ["KINDS", "TURNS", "MakeTalkWorld", "TalkTool", "TurnVerdicts", "is_luck", "verdict", "verdicts"]
