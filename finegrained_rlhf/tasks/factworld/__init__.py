"""FactWorld: a world of typed facts in which every error of an answer is known."""
