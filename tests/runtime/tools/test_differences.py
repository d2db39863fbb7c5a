"""Differences lead from one version of a file to the other, and take no time that a hostile file could choose."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from weft.runtime.tools.reading_tools import FileDifference


def patched(folder: Path, before: bytes | None, shown: str) -> bytes:
    """What the program `patch` makes of it."""
    file = folder / "file.txt"
    file.write_bytes(before or b"")
    subprocess.run(["patch", "--quiet", "--binary", str(file)], input=shown.encode(), check=True)
    return file.read_bytes()


def random_text(chance: random.Random) -> bytes:
    lines = b"".join(chance.choice([b"a", b"b", b"c", b"", b"a\r"]) + b"\n" for _ in range(chance.randrange(30)))
    return lines[:-1] if chance.random() < 0.3 else lines


def applied(before: bytes, after: bytes, difference: FileDifference) -> bytes:
    """The old lines, with each range of changes replaced by the new lines."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for change in reversed(difference.changes):
        old[change.old_start : change.old_end] = new[change.new_start : change.new_end]
    return b"".join(old)


def test_a_difference_leads_from_the_old_bytes_to_the_new_ones() -> None:
    chance = random.Random(19)
    for _ in range(2000):
        before, after = random_text(chance).replace(b"\r", b""), random_text(chance).replace(b"\r", b"")
        difference = FileDifference("file.txt", before, after)
        assert applied(before, after, difference) == after
        assert bool(difference.unified()) == (before != after)


def test_the_program_patch_makes_the_new_file_of_it(tmp_path: Path) -> None:
    if not Path("/usr/bin/patch").exists():
        pytest.skip("the program patch is not installed")
    chance = random.Random(20)
    for _ in range(40):
        before, after = random_text(chance), random_text(chance)
        if before != after and before:
            assert patched(tmp_path, before, FileDifference("file.txt", before, after).unified()) == after


def test_the_unified_form_is_the_one_people_know() -> None:
    before = b"one\ntwo\nthree\nfour\nfive\nsix\n"
    assert FileDifference("n.txt", before, before.replace(b"four", b"4")).unified() == (
        "--- a/n.txt\n+++ b/n.txt\n@@ -1,6 +1,6 @@\n one\n two\n three\n-four\n+4\n five\n six\n"
    )
    assert FileDifference("n.txt", None, b"one").unified() == (
        "--- /dev/null\n+++ b/n.txt\n@@ -0,0 +1 @@\n+one\n\\ No newline at end of file\n"
    )
    assert FileDifference("n.txt", b"a\xff\n", b"b\n").unified().splitlines()[3:] == ["-a\\xff", "+b"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\n" * 400_000, b"x\n" + b"\n" * 300_000 + b"y\n"),
        (b"a\n" * 20_000 + b"b\n", b"c\n" + b"a\n" * 20_000 + b"d\n"),
        (
            b"".join(b"%d\n" % number for number in range(3000)),
            b"".join(b"%d\n" % number for number in range(3000, 0, -1)),
        ),
    ],
)
def test_versions_that_are_hard_to_compare_are_shown_whole(before: bytes, after: bytes) -> None:
    difference = FileDifference("n.txt", before, after)
    assert applied(before, after, difference) == after
    shown = difference.unified().splitlines()
    assert sum(line.startswith(("-", " ")) for line in shown[2:]) <= before.count(b"\n")
