"""Resources: things beside conversations about which a fork decides; their owners, uses, handles and snapshots."""
