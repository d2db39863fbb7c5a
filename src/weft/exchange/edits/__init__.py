"""What tool calls did to files: as signed lines to be shown, and as exact edits that can be taken back."""
