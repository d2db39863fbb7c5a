"""The reader and the writer of archives, beside Python's own as the other opinion."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.resources.docker.running import entry, packed
from weft.kernel.errors import ArchiveRefused
from weft.runtime.resources.tar_archives import (
    OWN_ARCHIVE,
    ArchiveEntry,
    ArchiveEntryKind,
    archive_chunks,
    checked_entries,
    leads_out,
    read_archive,
)

NAMES = (
    st.binary(min_size=1, max_size=130)
    .filter(lambda name: b"/" not in name and b"\0" not in name)
    .filter(lambda name: name not in (b".", b".."))
)
KINDS = st.sampled_from(
    [ArchiveEntryKind.FILE, ArchiveEntryKind.FOLDER, ArchiveEntryKind.SYMBOLIC_LINK, ArchiveEntryKind.PIPE]
)
TIMES = st.integers(-(10**18), 10**21 - 1)
ATTRIBUTES = st.dictionaries(
    st.sampled_from([b"user.a", b"user.b=c", b"security.capability"]).filter(lambda name: b"=" not in name),
    st.binary(max_size=40),
)


@st.composite
def trees(draw: st.DrawFn) -> tuple[tuple[ArchiveEntry, ...], bytes]:
    """Entries in folders that exist, and the bytes of all files."""
    folders, data = [b""], b""
    files: list[bytes] = []
    entries: dict[bytes, ArchiveEntry] = {}
    for _ in range(draw(st.integers(0, 12))):
        path = (draw(st.sampled_from(folders)) + b"/" + draw(NAMES)).lstrip(b"/")
        if path in entries:
            continue
        if files and draw(st.integers(0, 3)) == 0:
            first = entries[draw(st.sampled_from(files))]
            entries[path] = ArchiveEntry(path=path, kind=ArchiveEntryKind.HARD_LINK, target=first.path)
            continue
        kind = draw(KINDS)
        body = draw(st.binary(max_size=1200)) if kind is ArchiveEntryKind.FILE else b""
        entries[path] = ArchiveEntry(
            path=path,
            kind=kind,
            mode=draw(st.integers(0, 0o7777)),
            uid=draw(st.integers(0, 2**32 - 2)),
            gid=draw(st.integers(0, 2**32 - 2)),
            modified_ns=draw(TIMES),
            size=len(body),
            offset=len(data),
            target=draw(NAMES) if kind is ArchiveEntryKind.SYMBOLIC_LINK else b"",
            attributes=tuple(sorted(draw(ATTRIBUTES).items())),
        )
        data += body
        (folders if kind is ArchiveEntryKind.FOLDER else files).append(path)
    return checked_entries(entries.values(), OWN_ARCHIVE), data


def without_offset(entries: tuple[ArchiveEntry, ...], source: io.BytesIO) -> list[tuple[object, ...]]:
    def body(made: ArchiveEntry) -> bytes:
        source.seek(made.offset)
        return source.read(made.size)

    fields = ("path", "kind", "mode", "uid", "gid", "modified_ns", "target", "attributes")
    return [(*(getattr(made, field) for field in fields), body(made)) for made in entries]


@given(trees())
def test_what_is_written_is_read_again(tree: tuple[tuple[ArchiveEntry, ...], bytes]) -> None:
    entries, data = tree
    archive = b"".join(archive_chunks(entries, io.BytesIO(data)))
    again = read_archive(io.BytesIO(archive), OWN_ARCHIVE)
    assert without_offset(again, io.BytesIO(archive)) == without_offset(entries, io.BytesIO(data))
    assert b"".join(archive_chunks(again, io.BytesIO(archive))) == archive


@given(trees())
def test_another_reader_sees_the_same_entries(tree: tuple[tuple[ArchiveEntry, ...], bytes]) -> None:
    entries, data = tree
    archive = b"".join(archive_chunks(entries, io.BytesIO(data)))
    with tarfile.open(fileobj=io.BytesIO(archive), encoding="utf-8", errors="surrogateescape") as other:
        members = other.getmembers()
        bodies = [other.extractfile(member) for member in members if member.isreg()]
        assert [body.read() for body in bodies if body] == [
            data[made.offset : made.offset + made.size] for made in entries if made.kind is ArchiveEntryKind.FILE
        ]
    assert [member.name.encode("utf-8", "surrogateescape") for member in members] == [made.path for made in entries]
    assert [(member.type, member.mode, member.uid, member.gid) for member in members] == [
        (made.kind.value, made.mode, made.uid, made.gid) for made in entries
    ]
    assert [member.linkname.encode("utf-8", "surrogateescape") for member in members] == [
        made.target for made in entries
    ]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_every_form_give_the_same_archive(form: int) -> None:
    folder = entry("f" * 90, tarfile.DIRTYPE, 0o755)
    made = packed(folder, (entry(f"{'f' * 90}/{'n' * 60}"), b"data"), form=form)
    (_, file) = read_archive(io.BytesIO(made), OWN_ARCHIVE)
    assert (file.path, file.size) == (b"f" * 90 + b"/" + b"n" * 60, 4)


def test_the_order_and_the_way_of_packing_do_not_matter() -> None:
    one = packed(
        entry("b/", tarfile.DIRTYPE, 0o755),
        (entry("b/x"), b"1"),
        (entry("a"), b"2"),
        entry("c", tarfile.LNKTYPE, linkname="b/x"),
        form=tarfile.GNU_FORMAT,
    )
    other = packed(
        (entry("./c"), b"1"),
        entry("./b", tarfile.DIRTYPE, 0o755),
        (entry("./a"), b"2"),
        entry("./b/x", tarfile.LNKTYPE, linkname="./c"),
    )
    archives = [
        b"".join(archive_chunks(read_archive(io.BytesIO(made), OWN_ARCHIVE), io.BytesIO(made))) for made in (one, other)
    ]
    assert archives[0] == archives[1]


def test_a_file_that_shrinks_while_it_is_written_anew_is_told() -> None:
    (made,) = read_archive(io.BytesIO(packed((entry("x"), b"data" * 500))), OWN_ARCHIVE)
    with pytest.raises(ArchiveRefused, match="it ends within"):
        list(archive_chunks([made], io.BytesIO(b"short")))


LINKS = {
    "here": ("f", False),
    "d/up": ("../f", False),
    "d/out": ("../../f", True),
    "absolute": ("/etc/passwd", True),
    "over": ("d/s/../../..", True),
    "d/s": (".", False),
    "loop": ("loop", True),
    "nowhere": ("gone/x", False),
    "slashes": ("d//../f/", False),
    "chain": ("d/out", True),
}


def test_a_link_that_leads_out_over_other_links_is_found() -> None:
    made = [
        ArchiveEntry(path=path.encode(), kind=ArchiveEntryKind.SYMBOLIC_LINK, target=target.encode())
        for path, (target, _) in LINKS.items()
    ]
    by_path = {link.path: link for link in made}
    by_path[b"d"] = ArchiveEntry(path=b"d", kind=ArchiveEntryKind.FOLDER)
    assert {link.path.decode(): leads_out(link, by_path) for link in made} == {
        path: is_out for path, (_, is_out) in LINKS.items()
    }
