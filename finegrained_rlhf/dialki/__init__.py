"""DIALKI (thesis chapter 3): the knowledge an answer rests on, as a passage of a document and a run of its spans.

Reads dialogues, trains and evaluates the model and its baselines, answers with it, and prepares and generates responses
from what it finds (`responses`, `response_data`, `respond`). The world and the tables made of it lie in `world`. Does
not know how a generator is trained or rewarded.
"""
