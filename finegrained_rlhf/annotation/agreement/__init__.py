"""How far annotators of the same items agree: numbers, and the disagreements side by side."""
