"""RewriteWorld: a generated corpus and dialogues over it whose questions need a word of what was said before.

It stands in `conqrr` and not in `tasks`: it makes conqrr's records, and floor-5 packages do not import each other.
"""
