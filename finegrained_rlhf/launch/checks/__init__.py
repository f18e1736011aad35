"""What is wrong with a configuration, before anything is made: keys, types, experiments, paths; and what keys mean.

Reads the declarations of the classes that a configuration names from their source, so that nothing heavy is imported.
"""
