"""Views from facts: the projector, and what each kind of event means to it."""

from weft.ledger.views import inboxes, programs, sessions, sightings, turns
from weft.ledger.views.projector import Projector

__all__ = ["Projector", "inboxes", "programs", "sessions", "sightings", "turns"]
