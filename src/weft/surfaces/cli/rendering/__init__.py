"""What a turn's calls and messages look like: one renderer for each shape of arguments, whatever the tool is called."""
