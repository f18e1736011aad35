"""What is remembered of users: an event log, which is the truth, and notes derived from it; SQLite, a handle per user."""
