"""Types of responses: what a classifier learns to tell from the conversation and the evidence."""
