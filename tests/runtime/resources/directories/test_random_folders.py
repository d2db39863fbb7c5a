"""Random folders, changed at random between snapshots: every one of them comes back, in place and beside."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runtime.resources.directories.folders import contents
from tests.sizes import sized
from weft.runtime.folder_snapshots.file_store import FileStore

MEMORY = "/dev/shm"
NAMES = st.sampled_from(
    [
        b"a",
        b"b",
        b"c.txt",
        b".GIT",
        b"git~1",
        b"=",
        b"=a",
        b".gitattributes",
        b"new\nline",
        b"\xff",
        b'"',
        b"a b",
        b"a-",
    ]
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
MODES = st.sampled_from([0o644, 0o644, 0o755, 0o600, 0o750, 0o444])
STEPS = st.one_of(
    st.tuples(st.just("file"), PATHS, st.binary(max_size=6), MODES),
    st.tuples(st.just("link"), PATHS, st.sampled_from([b"a", b"../..", b"/etc/passwd", b"\xfe"]), MODES),
    st.tuples(st.just("folder"), PATHS, st.just(b""), st.sampled_from([0o755, 0o700, 0o750])),
    st.tuples(st.just("remove"), PATHS, st.just(b""), MODES),
    st.tuples(st.just("mode"), PATHS, st.just(b""), MODES),
)
Step = tuple[str, bytes, bytes, int]


def remove(place: bytes) -> None:
    if os.path.isdir(place) and not os.path.islink(place):
        shutil.rmtree(place)
    elif os.path.lexists(place):
        os.unlink(place)


def apply(folder: Path, steps: list[Step]) -> None:
    for kind, path, data, mode in steps:
        place = os.path.join(os.fsencode(folder), path)
        if kind in ("remove", "mode"):
            if kind == "remove":
                remove(place)
            elif os.path.lexists(place) and not os.path.islink(place):
                os.chmod(place, mode | 0o700 if os.path.isdir(place) else mode)
            continue
        above = os.fsencode(folder)
        for name in path.split(b"/")[:-1]:
            above = os.path.join(above, name)
            if os.path.islink(above) or os.path.isfile(above):
                remove(above)
            os.makedirs(above, exist_ok=True)
        remove(place)
        if kind == "file":
            with open(place, "wb") as file:
                file.write(data)
            os.chmod(place, mode)
        elif kind == "link":
            os.symlink(data, place)
        else:
            os.mkdir(place)
            os.chmod(place, mode)


@settings(max_examples=sized(test=5, prove=300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(STEPS, max_size=8), min_size=1, max_size=4))
def test_every_state_of_a_random_folder_comes_back(rounds: list[list[Step]]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as top:
        store, folder = FileStore(Path(top) / "store"), Path(top) / "work"
        folder.mkdir()
        states = []
        for steps in rounds:
            apply(folder, steps)
            states.append((store.snapshot(folder).id, contents(folder)))
        for number, (snapshot, state) in enumerate(reversed(states)):
            done = store.restore(snapshot, folder)
            assert (contents(folder), done.left) == (state, ())
            assert store.snapshot(folder).id == snapshot
            beside = Path(top) / f"beside-{number}"
            store.restore(snapshot, beside)
            assert contents(beside) == state
            assert store.verify(snapshot) == []
            assert store.snapshot(beside).id == snapshot
