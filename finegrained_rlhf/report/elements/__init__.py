"""What pages and console tables are built of: escaped HTML, sections, tables. Knows no run."""
