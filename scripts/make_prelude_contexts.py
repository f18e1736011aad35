"""Make PRELUDE's rounds of your own documents: contexts, and the true preference of each source.

Example: python scripts/make_prelude_contexts.py documents=FILE output_dir=outputs/prelude/contexts task=email
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_prelude_contexts")  # under @hydra.main: Hydra's tab completion looks for these words
