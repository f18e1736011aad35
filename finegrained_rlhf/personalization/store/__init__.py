"""What is remembered of users: an event log, the truth, and notes derived from it; a handle per user."""
