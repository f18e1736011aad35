"""Make conversations of a file of AmbigDocs, with further questions that a language model asks (DisAmbigDocs).

Example: python scripts/make_disambig_docs.py data=FILE output=FILE llm.remote.url=URL llm.model=NAME
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_disambig_docs")  # under @hydra.main: Hydra's tab completion looks for these words
