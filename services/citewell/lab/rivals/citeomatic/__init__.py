"""Citeomatic: global citation recommendation from titles and abstracts, by nearest neighbours and a second network."""
