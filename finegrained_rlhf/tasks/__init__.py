"""Tasks: what a policy is trained for, with everything that is particular to it (floor 5)."""
