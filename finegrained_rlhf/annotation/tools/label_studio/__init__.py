"""Label Studio: tasks and label configuration out, its JSON export back. Its own code is never imported."""
