"""Fine-grained RLHF: a language model learns from feedback on which part of a text has which kind of error."""
