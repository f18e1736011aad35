"""TalkWorld: rewards where turns end against one reward at the end, and the tables of it."""

from finegrained_lab.experiments.talk.runs import ARMS, PrepareTalk, TrainTalk
from finegrained_lab.experiments.talk.tables import TalkTable

__all__ = ["ARMS", "PrepareTalk", "TalkTable", "TrainTalk"]
