"""Services over HTTP: many requests at once within a quota, tried again within a limit, and answers kept on disk."""
