"""Floor 9: result tables, claims of the papers and figures. May import every room below."""
