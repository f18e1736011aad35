"""The sections of a run's page and the page itself."""
