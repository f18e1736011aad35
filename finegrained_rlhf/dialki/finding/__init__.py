"""From trained weights to found knowledge: inference, span search."""
