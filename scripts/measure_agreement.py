"""Measure how far annotators agree: percent, kappa, alpha, spans, rankings; and a page of disagreements.

Example: python scripts/measure_agreement.py annotations=FILE tasks=DIR output=outputs/agreement.json
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("measure_agreement")  # under @hydra.main: Hydra's tab completion looks for these words
