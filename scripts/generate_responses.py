"""Answer dialogues: DIALKI finds the knowledge, a generator puts it into words; scores where responses are known.

Example: python scripts/generate_responses.py checkpoint=RUN knowledge=span dialki=RUN input=FILE output=answers.jsonl
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("generate_responses")  # under @hydra.main: Hydra's tab completion looks for these words
