"""The `weft` command. It begins in `entry.py`; every command is a module of `commands`, loaded when it is called."""
