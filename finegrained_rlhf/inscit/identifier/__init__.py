"""DIALKI as passage identifier of INSCIT: its dialogues, which passages it selects, and its predictions."""
