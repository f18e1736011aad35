"""Make what a dense retriever learns from, of questions in dialogues.

Example: python scripts/make_question_dpr_data.py data.path=FILE index=DIR corpus=DIR output=dpr_train.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_question_dpr_data")  # under @hydra.main: Hydra's tab completion looks for these words
