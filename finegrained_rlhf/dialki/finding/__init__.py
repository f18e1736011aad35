"""From trained weights to found knowledge: inference, span search, and how well it was found."""
