"""Archives of volumes that would write elsewhere, become what they are not, or never end: none is taken (T13).

Each is refused before an engine sees a byte of it, also by the rules for archives of our own. What is harmless in a
snapshot of our own and not in a stranger's archive is refused by the rules for strangers alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.runtime.resources.docker.running import entry, packed
from weft.kernel.errors import ArchiveRefused, LimitExceeded
from weft.runtime.resources.tar_archives import (
    BLOCK,
    FOREIGN_ARCHIVE,
    OWN_ARCHIVE,
    ArchiveRules,
    ArchiveStore,
    archive_chunks,
    read_archive,
)

DIR, LINK, SYMLINK = tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE
GNU = tarfile.GNU_FORMAT


def block(name: bytes, kind: bytes = b"0", size: int | bytes = 0, target: bytes = b"", **fields: bytes) -> bytearray:
    """One header; fields are `mode`, `uid`, `gid`, `size`, `mtime`, `magic`, `prefix`, as they lie in it."""
    header = bytearray(BLOCK)
    header[0 : len(name)] = name
    header[157 : 157 + len(target)] = target
    parts = {
        "mode": (100, b"0000644\0"),
        "uid": (108, b"0000000\0"),
        "gid": (116, b"0000000\0"),
        "size": (124, size if isinstance(size, bytes) else b"%011o\0" % size),
        "mtime": (136, b"00000000000\0"),
        "kind": (156, kind),
        "magic": (257, b"ustar\x0000"),
        "prefix": (345, b""),
    }
    for field, (at, usual) in parts.items():
        value = fields.get(field, usual)
        header[at : at + len(value)] = value
    return summed(header)


def summed(header: bytearray) -> bytearray:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header


def body(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def record(key: str, value: str | bytes) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key.encode(), value)


def pax(*records: bytes, kind: bytes = b"x") -> bytes:
    data = b"".join(records)
    return bytes(block(b"PaxHeaders", kind, len(data))) + body(data)


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    return bytes(block(b"././@LongLink", kind, len(name) + 1)) + body(name + b"\0")


END = bytes(2 * BLOCK)
PLAIN = bytes(block(b"x", size=1)) + body(b"1")


def with_wrong_sum() -> bytes:
    header = block(b"x")
    header[0] = ord("y")
    return bytes(header) + END


NEVER = {
    "an absolute path": packed(entry("/etc/cron.d/x")),
    "an absolute path, by a long name": long_name(b"/etc/" + b"x" * 200) + PLAIN + END,
    "an absolute path, by an extended header": pax(record("path", "/etc/x")) + PLAIN + END,
    "an absolute path, by a prefix": bytes(block(b"x", prefix=b"/etc")) + END,
    "upwards": packed(entry("../x")),
    "upwards in the middle": packed(entry("a", DIR), entry("a/../../x")),
    "upwards, by an extended header": pax(record("path", "a/../../x")) + PLAIN + END,
    "upwards at the end": packed(entry("a/..", DIR)),
    "upwards, by a prefix": bytes(block(b"x", prefix=b"../..")) + END,
    "a name with a zero byte": pax(record("path", b"a\0/../../x")) + PLAIN + END,
    "no name": bytes(block(b"")) + END,
    "a long name that is empty": long_name(b"") + PLAIN + END,
    "through a link to elsewhere": packed(entry("l", SYMLINK, linkname="/etc"), entry("l/x")),
    "through a link that comes later": packed(entry("l/x"), entry("l", SYMLINK, linkname="/etc")),
    "through a link that replaces its folder": packed(
        entry("l", DIR), entry("l", SYMLINK, linkname="/etc"), entry("l/x")
    ),
    "through a link to a link": packed(
        entry("a", SYMLINK, linkname="b"), entry("b", SYMLINK, linkname="/"), entry("a/x")
    ),
    "through a file": packed(entry("f"), entry("f/x")),
    "a folder that is not there": packed(entry("a/b/c")),
    "a hard link to elsewhere": packed(entry("h", LINK, linkname="/etc/passwd")),
    "a hard link upwards": packed(entry("h", LINK, linkname="../../etc/passwd")),
    "a hard link to what is not in it": packed(entry("h", LINK, linkname="etc/passwd")),
    "a hard link to what comes later": packed(entry("h", LINK, linkname="x"), entry("x")),
    "a hard link to itself": packed(entry("h", LINK, linkname="h")),
    "a hard link to a folder": packed(entry("d", DIR), entry("h", LINK, linkname="d")),
    "a hard link with bytes": bytes(block(b"x")) + bytes(block(b"h", b"1", 512, b"x")) + bytes(BLOCK) + END,
    "a link to nowhere": packed(entry("l", SYMLINK)),
    "a character device": packed(entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "a block device": packed(entry("disk", tarfile.BLKTYPE, devmajor=8)),
    "a contiguous file": packed(entry("x", tarfile.CONTTYPE)),
    "a type that nobody knows": bytes(block(b"x", b"Z")) + END,
    "a part of several archives": bytes(block(b"x", b"M")) + END,
    "a name of an archive": bytes(block(b"x", b"V")) + END,
    "the same name twice": packed(entry("x"), entry("x")),
    "the same name twice, written in two ways": packed(entry("a", DIR), entry("a/x"), entry("./a//./x")),
    "its top twice": packed(entry("./", DIR), entry(".", DIR)),
    "a top that is a link": packed(entry(".", SYMLINK, linkname="/etc")),
    "a file named like a folder": bytes(block(b"x/", size=0)) + END,
    "an old sparse file": bytes(block(b"x", b"S", 512)) + bytes(BLOCK) + END,
    "a sparse file of 8 EiB": pax(record("GNU.sparse.realsize", str(2**63 - 1)), record("GNU.sparse.major", "1"))
    + PLAIN
    + END,
    "a sparse file by its map": pax(record("GNU.sparse.map", "0,1"), record("GNU.sparse.size", "99")) + PLAIN + END,
    "a size beyond the end": bytes(block(b"x", size=10**9)) + END,
    "a size beyond the end, by an extended header": pax(record("size", str(2**62))) + PLAIN + END,
    "a size that is negative": bytes(block(b"x", size=b"\xff" * 12)) + END,
    "a size of 2**87": bytes(block(b"x", size=b"\x80" + b"\xff" * 11)) + END,
    "a size that is no number": bytes(block(b"x", size=b"-0000000001\0")) + END,
    "a size that is a negative decimal": pax(record("size", "-1")) + PLAIN + END,
    "a size in another script": pax(record("size", "٣")) + PLAIN + END,
    "a folder with bytes": bytes(block(b"d", b"5", 512)) + bytes(BLOCK) + END,
    "a header for all entries": pax(record("path", "x"), kind=b"g") + PLAIN + END,
    "two extended headers": pax(record("path", "a")) + pax(record("path", "b")) + PLAIN + END,
    "a record twice": pax(record("path", "a"), record("path", "../b")) + PLAIN + END,
    "a long name and an extended header": long_name(b"a") + pax(record("path", "b")) + PLAIN + END,
    "two long names": long_name(b"a") + long_name(b"b") + PLAIN + END,
    "an extended header without an entry": pax(record("path", "a")) + END,
    "a record that nobody knows": pax(record("WEFT.trust", "yes")) + PLAIN + END,
    "another set of characters": pax(record("hdrcharset", "EBCDIC")) + PLAIN + END,
    "a record that is longer than its header": pax(b"999 path=a\n") + PLAIN + END,
    "a record of no length": pax(b"0 path=a\n") + PLAIN + END,
    "a record that does not end": pax(b"9 path=abcdef") + PLAIN + END,
    "a record without a key": pax(b"5 =a\n") + PLAIN + END,
    "a record without a value": pax(b"7 path\n") + PLAIN + END,
    "a time that is no number": pax(record("mtime", "nan")) + PLAIN + END,
    "a time of a million digits": pax(record("mtime", "1" * 1_000_000)) + PLAIN + END,
    "an owner that nobody has": pax(record("uid", str(2**32))) + PLAIN + END,
    "a sum that does not fit": with_wrong_sum(),
    "no magic": bytes(block(b"x", magic=b"\0" * 8)) + END,
    "something after the end": packed(entry("x")) + PLAIN + END,
    "an entry after one empty block": PLAIN + bytes(BLOCK) + bytes(block(b"../x")) + END,
    "no end": PLAIN,
    "half a header": PLAIN + bytes(block(b"x"))[:100],
    "nothing": b"",
    "a compressed archive": gzip.compress(packed(entry("x"))),
    "zeros and nothing else, but one block": bytes(BLOCK),
}
FROM_A_STRANGER = {
    "a link to an absolute path": packed(entry("l", SYMLINK, linkname="/etc/passwd")),
    "a link upwards": packed(entry("l", SYMLINK, linkname="../x")),
    "a link out over a link": packed(
        entry("d", DIR), entry("d/s", SYMLINK, linkname="."), entry("l", SYMLINK, linkname="d/s/../../x")
    ),
    "a link to a link out": packed(entry("a", SYMLINK, linkname="b"), entry("b", SYMLINK, linkname="/")),
    "links in a circle": packed(entry("a", SYMLINK, linkname="b"), entry("b", SYMLINK, linkname="a")),
    "a long chain of links": packed(
        *(entry(f"l{number}", SYMLINK, linkname=f"l{number + 1}") for number in range(200)),
        entry("l200", SYMLINK, linkname="/"),
    ),
    "a set-user-id file": packed(entry("su", mode=0o4755)),
    "a set-group-id file": packed(entry("su", mode=0o2755)),
    "a file with capabilities": pax(record("SCHILY.xattr.security.capability", b"\1\0\0\2" + bytes(16))) + PLAIN + END,
    "a file with a trusted attribute": pax(record("SCHILY.xattr.trusted.overlay.opaque", "y")) + PLAIN + END,
}
SMALL = ArchiveRules(archive_bytes=100_000, entries=10, path_bytes=100, depth=4, header_bytes=2000)
TOO_MUCH = {
    "entries": packed(*(entry(f"f{number}") for number in range(11))),
    "bytes": packed((entry("f"), bytes(100_000))),
    "a name": pax(record("path", "n" * 101)) + PLAIN + END,
    "a link": pax(record("linkpath", "n" * 101)) + bytes(block(b"l", b"2", 0, b"x")) + END,
    "depth": packed(*(entry("d/" * depth, DIR, 0o755) for depth in range(1, 6))),
    "an extended header": pax(record("comment", "c" * 3000)) + PLAIN + END,
    "headers of one entry together": (long_name(b"n" * 900) + long_name(b"n" * 900, b"K")) + PLAIN + END,
}


def refused(archive: bytes, rules: ArchiveRules) -> str:
    with pytest.raises(ArchiveRefused) as error:
        read_archive(io.BytesIO(archive), rules)
    return error.value.reason


@pytest.mark.parametrize("what", NEVER)
def test_an_archive_that_would_escape_is_refused(what: str) -> None:
    assert refused(NEVER[what], OWN_ARCHIVE)
    assert refused(NEVER[what], FOREIGN_ARCHIVE)


@pytest.mark.parametrize("what", FROM_A_STRANGER)
def test_what_is_kept_of_our_own_is_refused_of_a_stranger(what: str) -> None:
    assert refused(FROM_A_STRANGER[what], FOREIGN_ARCHIVE)
    assert read_archive(io.BytesIO(FROM_A_STRANGER[what]), OWN_ARCHIVE)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_an_archive_of_too_much_is_refused(what: str) -> None:
    with pytest.raises(LimitExceeded):
        read_archive(io.BytesIO(TOO_MUCH[what]), SMALL)
    assert read_archive(io.BytesIO(TOO_MUCH[what]), OWN_ARCHIVE)


def digest_of_tree(folder: Path) -> str:
    found = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted((*folders, *names)):
            path = Path(place, name)
            found.update(f"{path.relative_to(folder)} {path.lstat().st_mode} {path.lstat().st_size}".encode())
    return found.hexdigest()


def test_no_archive_changes_anything_but_the_store(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root")
    store = ArchiveStore(tmp_path / "archives")
    store.folder.mkdir(mode=0o700)
    before = digest_of_tree(tmp_path)
    for number, archive in enumerate((*NEVER.values(), *FROM_A_STRANGER.values())):
        with pytest.raises(ArchiveRefused):
            store.keep(f"archive-{number}", [archive], FOREIGN_ARCHIVE)
    assert digest_of_tree(tmp_path) == before


def test_an_engine_is_given_an_archive_that_every_reader_understands_alike() -> None:
    """What is sent to an engine is written anew: its headers hold nothing that two readers could take differently."""
    tricky = pax(record("size", "3"), record("path", "new"), record("atime", "1")) + bytes(block(b"old")) + body(b"abc")
    made = b"".join(archive_chunks(read_archive(io.BytesIO(tricky + END), FOREIGN_ARCHIVE), io.BytesIO(tricky)))
    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        (member,) = archive.getmembers()
    assert (member.name, member.size, member.pax_headers) == ("new", 3, {})
