"""CONQRR, query rewriting in dialogues: data, weak labels, retrieval reward, training, evaluation (thesis, ch. 4)."""
