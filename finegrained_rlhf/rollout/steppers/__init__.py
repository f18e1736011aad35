"""One step of decoding with a static cache, by model family."""
