"""Which of a user's notes belong to a context: encoders of contexts, nearest neighbours, and indexes."""
