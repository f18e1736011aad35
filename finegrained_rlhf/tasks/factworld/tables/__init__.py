"""The thesis's tables and figures on FactWorld: one module a table, over what its experiment left in run directories.

Each reads and compares what the steps wrote; none trains, samples or scores anything.
"""
