"""Requests to people about tool calls, and the approval policies that decide whether to ask."""
