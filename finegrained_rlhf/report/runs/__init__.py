"""What a run directory says: records, responses, measures."""
