"""A trained model for others: a copy with a model card, and its way to the Hub."""
