"""What reward models stand on and read: Longformer with banded attention, decoder-only models, and heads."""
