"""Archives that are small on the disk and would take days, disks or memory to read."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import zstandard

from tests.attacks.importing import imported
from weft.exchange.importers.foreign_values import SOURCE_LIMITS
from weft.exchange.importing import sources
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget

LINES = "".join(
    json.dumps(line) + "\n"
    for line in (
        {"session": "s1", "title": "First"},
        {"id": "t1", "ask": "hi", "answer": "yo", "at": 1_700_000_000_000},
    )
)


def beside_a_good_one(folder: Path) -> Path:
    """A folder in which an honest session lies, too."""
    folder.mkdir()
    (folder / "good.jsonl").write_text(LINES)
    return folder


def crafted(path: Path, members: int, unpacked: int, is_shared: bool) -> None:
    """Members of so many bytes each; `is_shared`: one compressed member that the list names under many names."""
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    plain = LINES.encode().ljust(unpacked)
    data = packed.compress(plain) + packed.flush()
    sizes = (zlib.crc32(plain), len(data), len(plain))
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 0, *sizes, 11, 0)
    names = [b"%05d.jsonl" % number for number in range(members)]
    body = b"".join(local + name + data for name in (names[:1] if is_shared else names))
    directory, step = b"", 0 if is_shared else len(body) // members
    for number, name in enumerate(names):
        place = (11, 0, 0, 0, 0, 0, number * step)
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 8, 0, 0, *sizes, *place) + name
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, members, members, len(directory), len(body), 0)
    path.write_bytes(body + directory + end)


def test_members_that_lie_over_each_other_are_refused_and_the_others_are_imported(tmp_path: Path) -> None:
    folder = beside_a_good_one(tmp_path / "sources")
    crafted(folder / "bomb.zip", 5_000, 1_000_000, is_shared=True)
    assert (folder / "bomb.zip").stat().st_size < 500_000
    summary, turns = imported(tmp_path, folder)
    (problem,) = summary.problems
    assert problem.source.endswith("bomb.zip")
    assert "bytes that two of its members share" in problem.what
    assert turns == 1


def test_members_that_unpack_to_too_much_together_are_refused_before_one_is_unpacked(tmp_path: Path) -> None:
    folder = beside_a_good_one(tmp_path / "sources")
    crafted(folder / "bomb.zip", 60, 8_000_000, is_shared=False)
    summary, turns = imported(tmp_path, folder)
    (problem,) = summary.problems
    assert "unpack to" in problem.what
    assert f"where {SOURCE_LIMITS.free_bytes + 200 * (folder / 'bomb.zip').stat().st_size} is the most" in problem.what
    assert problem.what.endswith("imported")
    assert turns == 1


def test_a_list_of_members_that_is_too_long_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DIRECTORY_BYTES", 100_000)
    folder = beside_a_good_one(tmp_path / "sources")
    crafted(folder / "bomb.zip", 5_000, 1_000, is_shared=True)
    summary, turns = imported(tmp_path, folder)
    (problem,) = summary.problems
    assert "the list of its members in bytes" in problem.what
    assert turns == 1


def test_a_compressed_file_within_an_archive_has_no_bytes_for_free(tmp_path: Path) -> None:
    folder = beside_a_good_one(tmp_path / "sources")
    with zipfile.ZipFile(folder / "bomb.zip", "w") as archive:
        archive.writestr("a.jsonl.zst", zstandard.ZstdCompressor(level=1).compress(b"\0" * 200_000_000))
    summary, turns = imported(tmp_path, folder)
    (problem,) = summary.problems
    assert "unpack to" in problem.what
    assert turns == 1


def test_a_compressed_file_is_measured_against_its_size(tmp_path: Path) -> None:
    folder = beside_a_good_one(tmp_path / "sources")
    packed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(packed, closefd=False) as writer:
        for _ in range(300):
            writer.write(b"\0" * 1_000_000)
    (folder / "bomb.jsonl.zst").write_bytes(packed.getvalue())
    assert len(packed.getvalue()) < 50_000
    summary, turns = imported(tmp_path, folder)
    (problem,) = summary.problems
    assert "unpack to" in problem.what
    assert turns == 1


def test_thousands_of_members_are_listed_once_and_not_once_for_each(tmp_path: Path) -> None:
    """The list is parsed by the constructor: an archive of n members that parsed it n times would never end."""
    path = tmp_path / "many.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(300):
            archive.writestr(f"{number:05d}.jsonl", LINES)
    found = sources.Archives()
    names = [info.filename for info in found.members(path)]
    first = found._archive
    for name in names:
        found.unpack(path, name, tmp_path / "member", ReadBudget(SOURCE_LIMITS))
    assert len(names) == 300
    assert found._archive is first
    found.close()


def test_of_members_with_one_name_the_last_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "twice.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jsonl", "first")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.jsonl", "last")
    found = sources.Archives()
    (info,) = found.members(path)
    found.unpack(path, info.filename, tmp_path / "member", ReadBudget(SOURCE_LIMITS))
    assert (tmp_path / "member").read_text() == "last"
    found.close()


def test_unpacking_ends_with_the_time_of_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "slow.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jsonl", b"\0" * 5_000_000)
    moments = iter(range(0, 10_000, 100))
    budget = ReadBudget(SOURCE_LIMITS, lambda: next(moments))
    with pytest.raises(LimitExceeded, match="the seconds that reading it takes: 200, where 120 is the most"):
        sources.Archives().unpack(path, "a.jsonl", tmp_path / "member", budget)
