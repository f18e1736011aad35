"""Which of a user's notes belong to a context: encoders of contexts, and exact nearest neighbours."""
