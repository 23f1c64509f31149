"""The language server: completes citations in any editor that supports LSP."""
