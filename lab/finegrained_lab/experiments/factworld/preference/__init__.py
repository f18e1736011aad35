"""How well an annotator's preferences can be learnt: cues, ceiling and trained models."""
