"""Asking models: settings, routes, one attempt, tries and fallbacks."""
