"""Charts: SVG of our own for pages, matplotlib for papers."""
