"""Real texts for the similarity benchmark, and their vectors, which are made once and kept.

The texts are pieces of what people, models and tools said in the corpus beside the checkout, imported as any session
is. A piece is some ten or twenty words; no two are the same. Making a hundred thousand vectors takes minutes of CPU, so
they are kept in a file by the hash of their text.
"""

import json
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.measure import say

CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
LEAST = 24
"""Letters in a piece."""
TOGETHER = 1_024
KEY = 16

SOURCES = (
    ("SELECT content FROM messages UNION ALL SELECT thinking FROM messages", 96),
    ("SELECT result_json FROM tool_calls", 60),
)
"""What was said comes first; where that is too little, what tools answered. And how many characters a piece has at
most: thirty and twenty tokens of the model, few enough to embed a hundred thousand."""


def kept_pieces(folder: Path, amount: int, corpus: str) -> list[str]:
    """So many texts of a folder of the corpus: imported once, then found in a file."""
    file = folder / f"texts-{corpus or 'all'}-{amount}.json"
    if not file.exists():
        say("import the corpus")
        with tempfile.TemporaryDirectory(dir=folder) as place:
            ledger = Path(place) / "corpus.db"
            _import(ledger, CORPUS / corpus)
            file.write_text(json.dumps(pieces(ledger, amount)))
    found: list[str] = json.loads(file.read_text())
    return found


def _import(ledger: Path, source: Path) -> None:
    import weft
    from weft.exchange.importers.port import load_importers
    from weft.exchange.importing.run import ImportRun
    from weft.kernel.clock import FixedClock

    with weft.open(ledger) as opened:
        ImportRun(opened, load_importers(), FixedClock(10**13)).run([source])


def pieces(ledger: Path, amount: int) -> list[str]:
    """So many different texts of a ledger, in an order that has nothing to do with where they stood."""
    connection = sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)
    try:
        found: dict[str, None] = {}
        for query, longest in SOURCES:
            if len(found) < amount:
                fresh = {piece for (text,) in connection.execute(query) for piece in _cut(_strings(text), longest)}
                found |= dict.fromkeys(sorted(fresh - found.keys(), key=_key))
    finally:
        connection.close()
    if len(found) < amount:
        raise ValueError(f"{len(found):,} different texts in the corpus, not {amount:,}")
    return sorted(list(found)[:amount], key=_key)


def _strings(text: str | None) -> Iterator[str]:
    """The text itself, or every string in it where it is JSON."""
    if text is None:
        return
    try:
        yield from _inside(json.loads(text))
    except ValueError:
        yield text


def _inside(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _inside(each)


def _cut(texts: Iterable[str], longest: int) -> Iterator[str]:
    for text in texts:
        piece = ""
        for word in text.split():
            if piece and len(piece) + 1 + len(word) > longest:
                yield from _whole(piece)
                piece = ""
            piece = f"{piece} {word}"[:longest] if piece else word[:longest]
        yield from _whole(piece)


def _whole(piece: str) -> Iterator[str]:
    if sum(map(str.isalpha, piece)) >= LEAST:
        yield piece


def _key(text: str) -> bytes:
    return sha256(text.encode(errors="surrogatepass")).digest()[:KEY]


class KeptVectors:
    """An embedder that makes a vector once, and finds it in a file from then on."""

    def __init__(self, embedder: Any, file: Path) -> None:
        self.name, self.dimensions, self._embedder, self._file = embedder.name, embedder.dimensions, embedder, file
        self._size = KEY + 4 * self.dimensions
        self._places: dict[bytes, int] = {}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        with file.open("rb") as kept:
            while len(record := kept.read(self._size)) == self._size:
                self._places[record[:KEY]] = len(self._places)

    def ensure(self, texts: Sequence[str]) -> None:
        """Make those that are missing. A run that is cut off leaves what it made so far."""
        missing = [text for text in dict.fromkeys(texts) if _key(text) not in self._places]
        if not missing:
            return
        with self._file.open("r+b") as file:
            file.truncate(len(self._places) * self._size)
            file.seek(0, 2)
            for start in range(0, len(missing), TOGETHER):
                say(f"embed {len(missing):,} texts that were not embedded before: {start:,} done")
                some = missing[start : start + TOGETHER]
                for text, vector in zip(some, self._embedder.embed(some), strict=True):
                    file.write(_key(text) + vector.astype("<f4").tobytes())
                    self._places[_key(text)] = len(self._places)
                file.flush()

    def embed(self, texts: Sequence[str]) -> Any:
        import numpy as np

        self.ensure(texts)
        with self._file.open("rb") as file:
            rows = [self._read(file, text) for text in texts]
        return np.frombuffer(b"".join(rows), "<f4").reshape(-1, self.dimensions)

    def _read(self, file: Any, text: str) -> bytes:
        file.seek(self._places[_key(text)] * self._size + KEY)
        found: bytes = file.read(self._size - KEY)
        return found
