"""Where frames get across: over a stream of bytes, or from hand to hand in one process. Nothing is decided here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from weft.exchange.sync.frames import PREAMBLE, Frame, FrameReader, Kind, encode
from weft.exchange.sync.talk import Talk, refusal, refused, reported_divergence
from weft.kernel.clock import Clock
from weft.kernel.errors import ConnectionCut, ProtocolBroken, ReplicaDiverged, WeftError

T = TypeVar("T")
READ_BYTES = 256 * 1024
SILENCE_SECONDS = 300.0
"""Whoever says nothing for so long, or takes nothing in, is given up."""
PACE_BYTES = 4096
"""Whoever sends no whole frame and fewer bytes than this in that time is given up, too."""
LAST_FRAMES_LIMIT = 65_536
"""So many frames of one that is gone already are read to find out why it went."""


def raised_in(talk: Talk[Any], step: Callable[[], T]) -> T:
    """Do a step for a talk; what goes wrong is raised where the talk waits, so that it can take note of it."""
    try:
        return step()
    except WeftError as error:
        talk.throw(error)
        raise


class ByteStream(Protocol):
    """Bytes both ways."""

    def read(self, most: int) -> bytes:
        """At least one byte, or nothing when the other side is gone; TimeoutError when it stays silent."""

    def write(self, data: bytes) -> None:
        """All of it; TimeoutError when the other side takes nothing in."""

    def close(self) -> None:
        """No more, either way."""


class Channel:
    """Frames over a stream of bytes."""

    def __init__(
        self, stream: ByteStream, clock: Clock | None = None, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self._stream, self._reader = stream, FrameReader()
        self._clock, self._silence_seconds = clock, silence_seconds
        self._frames: deque[Frame] = deque()
        self.sent = 0

    @property
    def received(self) -> int:
        return self._reader.bytes

    def greet(self) -> None:
        self._write(PREAMBLE)

    def write(self, frame: Frame) -> None:
        self._write(encode(frame))

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except TimeoutError as error:
            raise ConnectionCut(f"the other side took nothing in for {self._silence_seconds:g} seconds") from error
        except (OSError, ValueError) as error:
            raise ConnectionCut(f"the other side went away ({error})") from error
        self.sent += len(data)

    def read(self) -> Frame:
        began, came = self._now(), 0
        while not self._frames:
            try:
                data = self._stream.read(READ_BYTES)
            except TimeoutError as error:
                raise ConnectionCut(f"the other side said nothing for {self._silence_seconds:g} seconds") from error
            except OSError as error:
                raise ConnectionCut(f"the other side went away ({error})") from error
            if not data:
                raise ConnectionCut(
                    "the other side went away" + ("" if self._reader.is_between else " in mid-sentence")
                )
            self._frames.extend(self._reader.feed(data))
            came += len(data)
            if not self._frames and self._now() - began > self._silence_seconds:
                if came < PACE_BYTES:
                    raise ConnectionCut(
                        f"the other side said {came} bytes and no whole frame in {self._silence_seconds:g} seconds"
                    )
                began, came = self._now(), 0
        return self._frames.popleft()

    def _now(self) -> float:
        return self._clock.monotonic() if self._clock is not None else 0.0

    def converse(self, talk: Talk[T]) -> T:
        """Carry one side of a conversation to its end. What it refuses, the other side is told."""
        try:
            out = next(talk)
            while True:
                if out is None:
                    out = talk.send(raised_in(talk, self.read))
                else:
                    raised_in(talk, partial(self._say, out))
                    out = next(talk)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except WeftError as error:
            if not isinstance(error, ConnectionCut):
                with suppress(WeftError):  # the error itself matters more than that nobody hears of it
                    self.write(refusal(error))
            raise

    def _say(self, frame: Frame) -> None:
        """Whoever refuses says why and goes, perhaps while something is on its way to it: that is what counts then."""
        try:
            self.write(frame)
        except ConnectionCut:
            with suppress(ConnectionCut):
                for _ in range(LAST_FRAMES_LIMIT):
                    if (last := self.read()).kind == Kind.ERROR:
                        raise refused(last) from None
            raise

    def close(self) -> None:
        self._stream.close()


class Served:
    """A conversation with a side that lives in this process: its frames are handed over as they are."""

    def __init__(self, served: Talk[Any]) -> None:
        self._served = served
        self._answers: deque[Frame] = deque()
        self._waiting = self._has_failed = False
        self.sent = self.received = 0

    def converse(self, talk: Talk[T]) -> T:
        try:
            out = next(talk)
            while True:
                if out is None:
                    frame = raised_in(talk, self._answer)
                    self.received += len(frame.body)
                    out = talk.send(frame)
                else:
                    self.sent += len(out.body)
                    raised_in(talk, partial(self._hand_over, out))
                    out = next(talk)
        except StopIteration as end:
            answer: T = end.value
            return answer
        except ReplicaDiverged as error:
            self._notify_served(error)
            raise

    def _notify_served(self, error: ReplicaDiverged) -> None:
        """The served side hears of a refusal as it would over a stream."""
        if not self._has_failed:
            with suppress(WeftError, StopIteration):  # it ends by what it hears; the error itself is raised here
                self._served.throw(reported_divergence(str(error)))

    def _answer(self) -> Frame:
        """One frame at a time: what is not heard yet is not made yet either."""
        while not self._answers and not self._waiting:
            self._step(lambda: next(self._served))
        if not self._answers:
            raise ProtocolBroken("both sides wait for each other")
        return self._answers.popleft()

    def _hand_over(self, frame: Frame) -> None:
        self._run()
        self._step(lambda: self._served.send(frame))

    def _run(self) -> None:
        """Let the served side go on until it wants to hear something."""
        while not self._waiting:
            self._step(lambda: next(self._served))

    def _step(self, step: Any) -> None:
        self._waiting = False
        try:
            out = step()
        except StopIteration:
            out = None
        except WeftError as error:
            self._answers.append(refusal(error))
            self._waiting = self._has_failed = True
            if isinstance(error, ReplicaDiverged):
                error.is_from_peer = True
            raise
        if out is None:
            self._waiting = True
        else:
            self._answers.append(out)

    def close(self) -> None:
        self._served.close()
