"""The subcommands of `citewell`, one module each."""
