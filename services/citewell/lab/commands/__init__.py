"""The lab's subcommands of `citewell`, one module each; they need the extra `lab`."""
