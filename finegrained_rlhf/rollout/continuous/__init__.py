"""Rollouts by transformers' continuous batching: paged keys and values, requests scheduled token by token."""
