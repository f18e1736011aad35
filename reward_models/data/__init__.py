"""From feedback records to examples in tokens, and a report of what a feedback file holds."""
