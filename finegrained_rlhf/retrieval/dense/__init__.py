"""Dense retrieval: encoders, vectors, nearest neighbours."""
