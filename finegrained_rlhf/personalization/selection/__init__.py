"""Which of a user's remarks are shown to a language model: conflicts between them, and sets without any (CORESET)."""
