"""Corpora in files: reads every known format as a stream, and prepares a corpus for loading. Imports no service."""
