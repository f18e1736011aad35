"""Make annotation tasks of sampled outputs: a page, or the files of a tool, for each annotator.

Example: python scripts/make_annotation_tasks.py outputs=FILE annotators=[ann,ben] output_dir=outputs/tasks
"""

from finegrained_rlhf.launch.commands import main

if __name__ == "__main__":
    main("make_annotation_tasks")  # under @hydra.main: Hydra's tab completion looks for these words
