"""Readers of TREC's topics of conversations: CAsT 2019 to 2022 and iKAT."""
