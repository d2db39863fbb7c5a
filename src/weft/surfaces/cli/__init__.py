"""The `weft` command. `main` is the entry point; every command is a module of `commands`, loaded when it is called."""
