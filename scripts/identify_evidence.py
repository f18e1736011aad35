"""Predict the evidence of INSCIT's turns with a trained DIALKI.

Example: python scripts/identify_evidence.py checkpoint=RUN data=dev.json input=dev.jsonl tune=pi_f1 output=found.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("identify_evidence")  # under @hydra.main: Hydra's tab completion looks for these words
