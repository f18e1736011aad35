"""What reward models say of answers that nobody annotated: which are worth annotating, and which spans to suggest."""
