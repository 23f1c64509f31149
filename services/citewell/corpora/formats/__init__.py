"""Foreign formats of corpora, one module each."""
