"""RealToxicityPrompts: records, files, and what a file holds."""
