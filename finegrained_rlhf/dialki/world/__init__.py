"""DialogueWorld: generated documents and dialogues about them, with the knowledge of every turn known.

It stands in `dialki` and not in `tasks`: it makes dialki's records, and floor-5 packages do not import each other.
"""
