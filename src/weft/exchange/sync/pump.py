"""Where frames get across: over a stream of bytes, or from hand to hand in one process. Nothing is decided here."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from weft.exchange.sync.frames import PREAMBLE, Frame, FrameReader, Kind, encode
from weft.exchange.sync.talk import Talk, refusal, refused
from weft.kernel.errors import ConnectionCut, ProtocolBroken, WeftError

T = TypeVar("T")
READ_BYTES = 256 * 1024


class ByteStream(Protocol):
    """Bytes both ways."""

    def read(self, most: int) -> bytes:
        """At least one byte, or nothing when the other side is gone."""

    def write(self, data: bytes) -> None:
        """All of it."""

    def close(self) -> None:
        """No more, either way."""


class Channel:
    """Frames over a stream of bytes."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._reader = stream, FrameReader()
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
        except (OSError, ValueError) as error:
            raise ConnectionCut(f"the other side went away ({error})") from error
        self.sent += len(data)

    def read(self) -> Frame:
        while not self._frames:
            try:
                data = self._stream.read(READ_BYTES)
            except OSError as error:
                raise ConnectionCut(f"the other side went away ({error})") from error
            if not data:
                raise ConnectionCut(
                    "the other side went away" + ("" if self._reader.is_between else " in mid-sentence")
                )
            self._frames.extend(self._reader.feed(data))
        return self._frames.popleft()

    def converse(self, talk: Talk[T]) -> T:
        """Carry one side of a conversation to its end. What it refuses, the other side is told."""
        try:
            out = next(talk)
            while True:
                if out is None:
                    out = talk.send(self.read())
                else:
                    self._say(out)
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
                while (last := self.read()).kind != Kind.ERROR:
                    continue
                raise refused(last) from None
            raise

    def close(self) -> None:
        self._stream.close()


class Served:
    """A conversation with a side that lives in this process: its frames are handed over as they are."""

    def __init__(self, served: Talk[Any]) -> None:
        self._served = served
        self._answers: deque[Frame] = deque()
        self._waiting = False
        self.sent = self.received = 0

    def converse(self, talk: Talk[T]) -> T:
        try:
            out = next(talk)
            while True:
                if out is None:
                    frame = self._answer()
                    self.received += len(frame.body)
                    out = talk.send(frame)
                else:
                    self.sent += len(out.body)
                    self._hand_over(out)
                    out = next(talk)
        except StopIteration as end:
            answer: T = end.value
            return answer

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
            self._waiting = True
            raise
        if out is None:
            self._waiting = True
        else:
            self._answers.append(out)

    def close(self) -> None:
        self._served.close()
