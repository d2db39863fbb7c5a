"""Snapshots of folders, in an object store of their own."""
