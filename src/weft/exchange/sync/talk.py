"""One side of a conversation, as a generator: it yields a frame to send, or None to hear the next one.

No side knows how frames get across. A pump carries them over a stream of bytes, or hands them over in one process.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

from weft.exchange.sync.frames import Frame, Kind
from weft.exchange.sync.messages import Refusal, framed, message_in
from weft.kernel.errors import PeerRefused, ProtocolBroken, ReplicaDiverged, WeftError

T = TypeVar("T")
Talk = Generator[Frame | None, Frame | None, T]


def hear(*kinds: Kind) -> Talk[Frame]:
    """The next frame, which must be one of these; a refusal is raised as what it is."""
    frame = yield None
    if frame is None:
        raise ProtocolBroken("the pump gave nothing where something was to be heard")
    if frame.kind == Kind.ERROR:
        raise refused(frame)
    if frame.kind not in kinds:
        raise ProtocolBroken(f"{frame.kind.name} came where {' or '.join(kind.name for kind in kinds)} must come")
    return frame


def refusal(error: WeftError) -> Frame:
    """An error for the other side to show."""
    return framed(Kind.ERROR, Refusal(error=error.code, message=str(error)[:2000], hint=error.hint[:500]))


def reported_divergence(message: str) -> ReplicaDiverged:
    """The other side says that what is remembered of it here is not what it said."""
    error = ReplicaDiverged(message)
    error.is_from_peer = True
    return error


def refused(frame: Frame) -> WeftError:
    """What the other side says that it refuses, as an error here."""
    peer_refusal = message_in(frame, Refusal)
    if peer_refusal.error == ReplicaDiverged.code:
        return reported_divergence(peer_refusal.message)
    return PeerRefused(peer_refusal.error, peer_refusal.message, peer_refusal.hint)
