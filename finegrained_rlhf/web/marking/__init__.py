"""Marking together: accounts, tasks dealt out, marks kept key by key on the server, agreement, and one record of all."""
