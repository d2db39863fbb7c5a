"""Lines that are typed at a terminal while an answer comes."""

from __future__ import annotations

import asyncio
import io
import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

READ_BYTES = 4096


def descriptor_of(stream: TextIO) -> int | None:
    """The file descriptor of a stream; None where it has none, such as one that lies in memory."""
    try:
        return stream.fileno()
    except io.UnsupportedOperation:
        return None


class TypedAhead:
    """Reads whole lines beside an answer. `take` is called with each; one that it does not take waits for the prompt.
    The terminal edits and echoes lines itself meanwhile, and hands them over when they are complete."""

    def __init__(self, file: int | None, take: Callable[[str], bool]) -> None:
        """Without a file nothing is read beside an answer."""
        self._file, self._take = file, take
        self._waiting: deque[str] = deque()
        self._begun = b""
        self._is_ended = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within a running event loop."""
        if self._file is None:
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_reader(self._file, self._read)
        try:
            yield
        finally:
            loop.remove_reader(self._file)

    def _read(self) -> None:
        assert self._file is not None, "what is read has a file"
        data = os.read(self._file, READ_BYTES)
        if not data:  # Ctrl-D: the conversation ends at the next prompt
            self._is_ended = True
            asyncio.get_running_loop().remove_reader(self._file)
            return
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if not self._take(text):
                self._waiting.append(text)

    def next_line(self) -> str | None:
        """The next line that waits; None where there is none. Raises EOFError where nothing more comes."""
        if self._waiting:
            return self._waiting.popleft()
        if self._is_ended:
            raise EOFError
        return None
