"""DIALKI (thesis chapter 3): the knowledge an answer rests on, as a passage of a document and a run of its spans.

Knows dialogues, passages and knowledge labels, and the model trained on them. Does not know how answers are written.
"""
