"""DAVINCI scores for the candidates of a query."""
