"""Floor 0: records, errors, checks of fields, seeding and files. Knows no model, no text rule and no algorithm."""
