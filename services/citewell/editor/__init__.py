"""The language server: citations completed while a draft is written, in any editor that speaks LSP."""
