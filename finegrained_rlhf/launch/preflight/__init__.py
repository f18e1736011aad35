"""What can be said before a run: the doctor and the memory plan as commands."""
