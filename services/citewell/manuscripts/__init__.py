"""Drafts in LaTeX, Markdown, Word and plain text: where a citation is missing, and bibliographies in and out.

Pure: bytes and text in, dataclasses out. Nothing here asks a service.
"""
