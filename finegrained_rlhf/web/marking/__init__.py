"""Marking together: accounts, tasks dealt out, every key kept on the server, agreement, and one record of all."""
