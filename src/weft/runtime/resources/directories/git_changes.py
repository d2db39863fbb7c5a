"""What changed in git's folders since a whole snapshot: where `HEAD` stands, references, and what is staged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from weft.runtime.resources.directories.comparing import StoredEntry
from weft.runtime.resources.directories.model import readable_path
from weft.runtime.resources.directories.objects import BLOB, ObjectReader

HEAD, PACKED, REFERENCES, INDEX = b"HEAD", b"packed-refs", b"refs/", b"index"
_SYMBOLIC = b"ref: "
_KINDS = (("refs/heads/", "branch "), ("refs/tags/", "tag "), ("refs/remotes/", "remote branch "))
_SHORT_DIGITS = 8


class GitChange(Struct, frozen=True, kw_only=True):
    """Something of a repository that differs. `repository` is the path of git's folder, from the workspace on; `what`
    names a reference, `HEAD`, the index or the repository itself. `old` and `new` are where it stood and stands, as far
    as that has words; None: it was not there, or is not."""

    repository: str
    what: str
    old: str | None
    new: str | None

    @property
    def words(self) -> str:
        """In one line: `.git: branch main 0f3c21aa -> 9b1d4e07`."""
        if self.old is None:
            outcome = f"is new{f' ({self.new})' if self.new else ''}"
        elif self.new is None:
            outcome = f"is gone{f' ({self.old})' if self.old else ''}"
        else:
            outcome = f"{self.old} -> {self.new}" if self.old or self.new else "changed"
        return readable_path(f"{self.repository}: {self.what} {outcome}")


def reference_changes(repository: str, old: Mapping[bytes, bytes], new: Mapping[bytes, bytes]) -> Iterator[GitChange]:
    """`HEAD` first, then by name."""
    for name in sorted(old.keys() | new.keys(), key=lambda name: (name != HEAD, name)):
        if old.get(name) != new.get(name):
            yield GitChange(
                repository=repository, what=_named(name), old=_stands_at(old.get(name)), new=_stands_at(new.get(name))
            )


def load_references(reader: ObjectReader, entries: Mapping[bytes, StoredEntry]) -> dict[bytes, bytes]:
    """Where `HEAD` and each reference of a folder of git's stand. One with a file of its own does not stand where the
    packed ones say."""
    references: dict[bytes, bytes] = {}
    if PACKED in entries and not entries[PACKED].is_folder:
        for line in reader.read(BLOB, entries[PACKED].id).splitlines():
            id, _, name = line.partition(b" ")
            if name and not line.startswith((b"#", b"^")):
                references[name] = id
    for path, entry in entries.items():
        if not entry.is_folder and (path == HEAD or path.startswith(REFERENCES)):
            references[path] = reader.read(BLOB, entry.id).strip()
    return references


def _named(name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    return next((kind + text.removeprefix(prefix) for prefix, kind in _KINDS if text.startswith(prefix)), text)


def _stands_at(value: bytes | None) -> str | None:
    if value is None:
        return None
    if value.startswith(_SYMBOLIC):
        return _named(value.removeprefix(_SYMBOLIC).strip())
    return value.decode("utf-8", "surrogateescape")[:_SHORT_DIGITS]
