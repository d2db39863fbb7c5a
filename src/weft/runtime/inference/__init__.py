"""Asking models: settings, routes, one attempt, tries and fallbacks, and the turns that record it."""
