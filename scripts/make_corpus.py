"""Make a corpus of pages of Wikipedia, as INSCIT publishes them; a run that was killed goes on.

Example: python scripts/make_corpus.py pages=DIR output_dir=DIR
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_corpus")  # under @hydra.main: Hydra's tab completion looks for these words
