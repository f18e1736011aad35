"""PAHF's protocol: scenes with options, users who answer and correct, four phases, and what is measured of them."""
