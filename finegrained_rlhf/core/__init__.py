"""Floor 0: records, errors, statistics, seeding and files. Knows no model, no text rule and no algorithm."""
