"""What language models are asked: a template a question (`*.txt`), with all that users wrote fenced as JSON."""
