"""TalkWorld: rewards where turns end against one reward at the end."""
