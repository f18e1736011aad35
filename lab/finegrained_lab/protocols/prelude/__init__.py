"""PRELUDE: agents that write for a user who edits, all on the same contexts in the same order, and what is measured."""
