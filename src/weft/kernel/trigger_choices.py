"""The words of which one is chosen in the configuration of a trigger."""

from __future__ import annotations

WEBHOOK_SCHEMES = ("github", "stripe", "slack", "standard")
"""How a webhook is signed."""
MISSED_CHOICES = ("report", "latest", "all")
"""What is done with missed times; the first where nothing is said."""
SESSION_PERIODS = ("yesterday", "today", "week")
"""Whose sessions can be put into a message."""
SCHEDULED = ("cron", "interval", "at")
"""What sets a trigger off by the clock."""
