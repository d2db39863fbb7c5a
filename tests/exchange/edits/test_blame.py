"""Who wrote which line, against a model that remembers it line by line while the file is edited."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from weft.exchange.file_changes import FileEdit, Hunk, Swap, blame, edits_of, last_text, lines_of

AROUND = 2
Step = tuple[object, ...]


class Model:
    """A file whose every line knows its writer."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []
        self.edits: list[FileEdit] = []
        self._fresh = count()

    def fresh(self, number: int) -> list[tuple[str, int]]:
        return [(f"line {next(self._fresh)}", len(self.edits)) for _ in range(number)]

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line, _ in self.lines)

    def write(self, size: int) -> None:
        self.lines = self.fresh(size)
        self.edits.append(FileEdit("f", whole=self.text))

    def patch(self, at: int, gone: int, come: int, numbered: bool) -> None:
        at = min(at, len(self.lines))
        gone = min(gone, len(self.lines) - at)
        lead, tail = self.lines[max(0, at - AROUND) : at], self.lines[at + gone : at + gone + AROUND]
        new = self.fresh(come)
        signed = [
            *((" ", line) for line, _ in lead),
            *(("-", line) for line, _ in self.lines[at : at + gone]),
            *(("+", line) for line, _ in new),
            *((" ", line) for line, _ in tail),
        ]
        start = at - len(lead) + 1 if numbered else None
        self.edits.append(FileEdit("f", hunks=(Hunk(tuple(signed), start, start),)))
        self.lines[at : at + gone] = new

    def swap(self, at: int, gone: int, come: int) -> None:
        at = min(at, max(0, len(self.lines) - 1))
        old, new = self.lines[at : at + gone], self.fresh(come)
        if not old:
            return
        before, after = ("\n".join(line for line, _ in lines) for lines in (old, new))
        self.edits.append(FileEdit("f", swaps=(Swap(before, after),)))
        self.lines[at : at + gone] = new


STEPS = st.one_of(
    st.tuples(st.just("patch"), st.integers(0, 12), st.integers(0, 4), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("swap"), st.integers(0, 12), st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.just("write"), st.integers(1, 9)),
)


@given(st.integers(1, 12), st.lists(STEPS, max_size=12))
def test_every_line_is_its_writers(size: int, steps: list[Step]) -> None:
    model = Model()
    model.write(size)
    for name, *how in steps:
        getattr(model, str(name))(*how)
    found = blame(model.text, [(n, edit) for n, edit in enumerate(model.edits)][::-1])
    assert found.lines == [writer for _, writer in model.lines]
    assert found.unplaced == []
    assert lines_of(last_text(model.edits) or "") == [line for line, _ in model.lines]


@given(st.integers(1, 12), st.lists(STEPS, max_size=8), st.data())
def test_lines_that_nobody_recorded_are_nobodys(size: int, steps: list[Step], data: st.DataObject) -> None:
    """Whatever else happened to the file since, no line is said to be somebody's who never wrote it."""
    model = Model()
    model.write(size)
    for name, *how in steps:
        getattr(model, str(name))(*how)
    wrote = dict(model.lines)
    now = lines_of(model.text)
    for n in range(data.draw(st.integers(1, 5))):
        now.insert(data.draw(st.integers(0, len(now))), f"by hand {n}")
    found = blame("\n".join(now), [(n, edit) for n, edit in enumerate(model.edits)][::-1])
    for line, writer in zip(now, found.lines, strict=True):
        assert writer is None or writer == wrote[line]


def test_a_change_inside_a_line_is_the_changers() -> None:
    first = FileEdit("f", whole="a = 1\nb = 2\nc = 3\n")
    second = FileEdit("f", swaps=(Swap("= 2", "= 20"),))
    assert blame("a = 1\nb = 20\nc = 3\n", [("second", second), ("first", first)]).lines == ["first", "second", "first"]


def test_one_text_wherever_it_stands() -> None:
    edits = [FileEdit("f", whole="x\ny\nx\n"), FileEdit("f", swaps=(Swap("x", "z", everywhere=True),))]
    assert last_text(edits) == "z\ny\nz\n"
    assert blame("z\ny\nz\n", [(2, edits[1]), (1, edits[0])]).lines == [2, 1, 2]


def test_an_edit_that_is_not_there_any_more_is_named() -> None:
    edits = [(2, FileEdit("f", swaps=(Swap("one", "two"),))), (1, FileEdit("f", whole="one\nlast\n"))]
    found = blame("something else\nlast\n", edits)
    assert (found.lines, found.unplaced) == ([None, 1], [2])


def test_a_file_that_was_deleted_owes_nothing_to_before() -> None:
    edits = [(2, FileEdit("f", deleted=True)), (1, FileEdit("f", whole="a\n"))]
    assert blame("a\n", edits).lines == [None]
    assert last_text(edit for _, edit in reversed(edits)) is None


def test_edits_that_do_not_fit_make_no_text() -> None:
    assert last_text([FileEdit("f", whole="a\n"), FileEdit("f", swaps=(Swap("b", "c"),))]) is None
    assert last_text([FileEdit("f", swaps=(Swap("b", "c"),))]) is None


PATCH = """*** Begin Patch
*** Update File: src/a.py
@@ def f():
-    return 1
+    return 2
*** Add File: src/b.py
+new
*** Delete File: src/c.py
*** End Patch
"""


def test_edits_in_every_way_that_tools_tell_them() -> None:
    (swap,) = edits_of({"file_path": "a", "old_string": "x", "new_string": "y", "replace_all": True}, None)
    assert swap == FileEdit("a", swaps=(Swap("x", "y", everywhere=True),))
    (several,) = edits_of(
        {"path": "a", "edits": [{"oldText": "x", "newText": "y"}, {"oldText": "p", "newText": "q"}]}, None
    )
    assert several.swaps == (Swap("x", "y"), Swap("p", "q"))
    (whole,) = edits_of('{"filePath": "a", "content": "all"}', None)
    assert whole == FileEdit("a", whole="all")
    update, add, delete = edits_of({"input": PATCH}, None)
    assert update == FileEdit("src/a.py", hunks=(Hunk((("-", "    return 1"), ("+", "    return 2"))),))
    assert (add, delete) == (FileEdit("src/b.py", whole="new"), FileEdit("src/c.py", deleted=True))
    detail = {
        "structuredPatch": [{"oldStart": 3, "oldLines": 2, "newStart": 3, "newLines": 2, "lines": [" a", "-b", "+c"]}]
    }
    (told,) = edits_of({"file_path": "a", "content": "whole"}, detail)
    assert told == FileEdit("a", hunks=(Hunk(((" ", "a"), ("-", "b"), ("+", "c")), 3, 3),))
    assert edits_of({"command": "ls"}, None) == []
