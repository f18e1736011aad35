"""Read public span feedback (RAGTruth, FavaBench, PRM800K, MQM) and write it as a feedback file.

Example: python scripts/read_public_feedback.py public_feedback@source=mqm taxonomy=mqm source.data=FILE output=FILE
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("read_public_feedback")  # under @hydra.main: Hydra's tab completion looks for these words
