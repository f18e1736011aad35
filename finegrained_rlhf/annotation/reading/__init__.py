"""From exports of annotation tools to checked annotations."""
