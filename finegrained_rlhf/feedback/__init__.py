"""QA-FEEDBACK records, their files and files of outputs."""
