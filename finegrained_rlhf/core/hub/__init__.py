"""The Hugging Face Hub: how models and data sets on it are named, and where the ordinary cache holds them."""
