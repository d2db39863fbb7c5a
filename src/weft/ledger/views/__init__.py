"""Views from facts: the projector, and what each kind of event means to it."""

from weft.ledger.views import runs, sessions, sightings, versions
from weft.ledger.views.projector import Projector

__all__ = ["Projector", "runs", "sessions", "sightings", "versions"]
