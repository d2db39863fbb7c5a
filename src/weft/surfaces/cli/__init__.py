"""The `weft` command. It begins in `entry.py`; `main.py` lists the commands and the modules that they lie in, which are
loaded when they are called."""
