"""CORESET's protocol: conversations about several entities of one name, their agents, and what is measured of them."""
