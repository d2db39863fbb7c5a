"""Commands on the files of turns: `fork`, `checkout`, `diff --files`, `undo`, `merge` and `bisect --restore`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import weft as library
from tests.sizes import share
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_import import SESSION, line
from weft.ledger.api import ResourceLog
from weft.runtime.resources.workspace_snapshots import workspace_resource
from weft.surfaces.cli.user_files import find_ledger
from weft.surfaces.cli.work.sandbox_access import directory_driver, load_resource_settings


class Desk:
    """A session that works in a folder."""

    def __init__(self, weft: Shell, folder: Path) -> None:
        self.weft, self.folder = weft, folder / "site"
        self.folder.mkdir()

    def work(self, session: str = "main", folder: Path | None = None, **files: str) -> str:
        """A turn that writes these files."""
        place = folder or self.folder
        turn: str = self.weft.json("record", "--session", session, "--query", f"write {files}", "--response", "done")[
            "id"
        ]
        path = find_ledger(None)
        with library.open(path) as ledger:
            driver, log = directory_driver(ledger, load_resource_settings().snapshots), ResourceLog(ledger)
            resource = workspace_resource(log, driver, ledger.session(session).id, place)
            log.record_snapshot(resource, driver.take(place), run=turn, is_before=True)
            for name, text in files.items():
                (place / name).write_text(text)
            log.record_snapshot(resource, driver.take(place), run=turn)
        return turn


def listed(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.fixture
def desk(weft: Shell, folder: Path) -> Desk:
    made = Desk(weft, folder)
    made.work(page="one\n")
    made.work(page="two\n", more="x\n")
    return made


def test_a_fork_copies_the_files_of_its_turn(desk: Desk, folder: Path) -> None:
    shown = desk.weft("fork", "main~1", "alt", "--dry-run")
    assert "site would be copied to" in shown.out
    assert desk.weft("show", "alt").code == 3, "nothing was forked"
    answer = desk.weft("fork", "main~1", "alt")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0].startswith("alt stands at ")
    assert f"site was copied to {folder / 'site-alt'}" in answer.out
    assert listed(folder / "site-alt") == {"page": "one\n"}
    assert listed(desk.folder) == {"more": "x\n", "page": "two\n"}
    forked = desk.weft.json("fork", "main", "third", "--in", "elsewhere")
    assert forked["label"] == "third"
    assert [(one["mode"], one["outcome"], one["place"]) for one in forked["resources"]] == [
        ("snapshot", "ok", str(folder / "elsewhere"))
    ]
    assert listed(folder / "elsewhere") == {"more": "x\n", "page": "two\n"}


@pytest.mark.parametrize(
    "decision", share([(), ("--files", "keep"), ("--files", "discard"), ("--in", "there")], test=1)
)
def test_a_plan_that_was_shown_can_be_followed(desk: Desk, folder: Path, decision: tuple[str, ...]) -> None:
    desk.weft("resource", "add", "urn:x", "--session", "main")
    shown = desk.weft("--json", "fork", "main~1", "alt", *decision, "--dry-run")
    assert shown.code == 0, shown.err
    (folder / "plan.json").write_text(shown.out)
    again = desk.weft("--json", "fork", "main~1", "alt", "--plan", "plan.json", "--dry-run")
    told, retold = ([without(one, "why") for one in json.loads(text.out)["resources"]] for text in (shown, again))
    assert told == retold
    done = desk.weft.json("fork", "main~1", "alt", "--plan", "plan.json")["resources"]
    assert [without(one, "why", "outcome") for one in done] == [without(one, "outcome") for one in told]


def test_a_shown_plan_that_gives_to_the_fork_is_followed(desk: Desk, folder: Path) -> None:
    (folder / "plan.json").write_text('[{"resource": "site", "mode": "keep", "kept_by": "fork"}]')
    shown = desk.weft("--json", "fork", "main", "alt", "--plan", "plan.json", "--dry-run")
    (folder / "plan.json").write_text(shown.out)
    (moved,) = desk.weft.json("fork", "main", "alt", "--plan", "plan.json")["resources"]
    assert moved["kept_by"] == "alt"
    assert desk.weft.json("resource", "show", "site")["resource"]["owner"]["name"] == "alt"


def without(line: dict[str, object], *fields: str) -> dict[str, object]:
    return {name: value for name, value in line.items() if name not in fields}


def test_a_fork_says_which_state_the_copy_has_and_what_it_lacks(desk: Desk, folder: Path) -> None:
    os.mkfifo(desk.folder / "pipe")
    last = desk.work(page="three\n")
    (desk.folder / "page").write_text("by hand\n")
    shown = desk.weft("fork", "main", "alt", "--dry-run").out
    assert "a copy of what it was like at that turn" in shown
    assert "without what changed since in 1 path, without 1 path that could not be kept, without .git" in shown
    answer = desk.weft("fork", "main", "alt")
    assert (folder / "site-alt" / "page").read_text() == "three\n"
    assert f"`weft resource snapshot site --turn {last} --again` a fork has the present state" in answer.err
    assert desk.weft("resource", "snapshot", "site", "--turn", last, "--again").code == 0
    again = desk.weft("fork", "main", "present")
    assert "changed since" not in again.out + again.err
    assert (folder / "site-present" / "page").read_text() == "by hand\n"
    assert "without pipe: special" in desk.weft("resource", "show", "site").out


def test_hints_of_undo_are_commands_that_run(desk: Desk) -> None:
    desk.work("other", page="theirs\n")
    refused = desk.weft("undo", "main")
    parent = desk.weft.json("show", "main~1")["id"]
    assert f"`weft checkout {parent} --to DIR`" in refused.err
    assert desk.weft("checkout", parent, "--to", "beside").code == 0
    path = find_ledger(None)
    with library.open(path) as ledger:
        driver, log = directory_driver(ledger, load_resource_settings().snapshots), ResourceLog(ledger)
        turn = desk.weft.json("record", "--session", "late", "--query", "x", "--response", "y")["id"]
        place = desk.folder.parent / "late"
        place.mkdir()
        resource = workspace_resource(log, driver, ledger.session("late").id, place)
        log.record_snapshot(resource, driver.take(place), run=turn)
    assert "`weft undo late --files keep` takes the conversation back alone" in desk.weft("undo", "late").err
    assert desk.weft("undo", "late", "--files", "keep").code == 0
    assert desk.weft.json("undo", "late", "--redo")["session"]["head"] == turn


def test_a_fork_follows_a_plan_or_one_decision(desk: Desk, folder: Path) -> None:
    kept = desk.weft.json("fork", "main", "a", "--files", "keep")["resources"]
    assert [(one["mode"], one["kept_by"]) for one in kept] == [("keep", "main")]
    (folder / "plan.json").write_text('[{"resource": "site", "mode": "keep", "kept_by": "fork"}]')
    moved = desk.weft.json("fork", "main", "b", "--plan", "plan.json")["resources"]
    assert moved[0]["kept_by"] == "b"
    assert desk.weft("fork", "main", "c", "--files", "keep", "--plan", "plan.json").code == 2
    assert desk.weft("fork", "main", "c", "--plan", "none.json").code != 0
    (folder / "plan.json").write_text("nonsense")
    assert "the plan cannot be read" in desk.weft("fork", "main", "c", "--plan", "plan.json").err


def test_a_copy_that_fails_is_told_and_the_session_is_there(desk: Desk, folder: Path) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "own").write_text("mine")
    answer = desk.weft("fork", "main", "alt", "--in", "full")
    assert answer.code == 9
    assert "could not be copied" in answer.out
    assert desk.weft("show", "alt").code == 0
    assert listed(folder / "full") == {"own": "mine"}


def test_a_session_without_files_is_forked_as_ever(weft: Shell) -> None:
    weft.record("hello")
    answer = weft.json("fork", "main", "alt")
    assert (answer["label"], answer["resources"]) == ("alt", [])
    assert "nothing beside the conversation" in weft("fork", "main", "x", "--dry-run").out
    assert weft("fork", "main", "x", "--in", "dir").code == 2


def test_files_are_checked_out_beside_and_over_the_directory(desk: Desk, folder: Path) -> None:
    answer = desk.weft("checkout", "main~1", "--to", "old")
    assert answer.code == 0, answer.err
    assert listed(folder / "old") == {"page": "one\n"}
    refused = desk.weft("checkout", "main~1")
    assert refused.code != 0
    assert "2 paths of" in refused.err
    assert listed(desk.folder) == {"more": "x\n", "page": "two\n"}
    done = desk.weft("checkout", "main~1", "--yes")
    assert done.code == 0, done.err
    assert listed(desk.folder) == {"page": "one\n"}
    assert "undo: weft resource restore" in done.err


def test_files_that_nobody_kept_are_put_together_from_what_the_session_tells(weft: Shell, folder: Path) -> None:
    def call(number: int, name: str, **given: str) -> str:
        use = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}
        back = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "done"}
        asked = line(f"a{number}", f"r{number - 1}", "assistant", [use])
        return asked + line(f"r{number}", f"a{number}", "user", [back])

    source = folder / "session.jsonl"
    source.write_text(
        line("r0", None, "user", "please")
        + call(1, "Write", file_path="/home/dev/shop/a", content="one\n")
        + call(2, "Edit", file_path="/home/dev/shop/b", old_string="x", new_string="y")
        + line("a9", "r2", "assistant", [{"type": "text", "text": "done"}])
    )
    os.utime(source, (1_000_000_000, 1_000_000_000))
    assert weft("import", str(source)).code == 0
    assert "no files are known" in weft("checkout", SESSION, "--to", "out").err
    shown = weft("checkout", SESSION, "--reconstruct", "--to", "out")
    assert shown.code == 0, shown.err
    assert "has 1 file that" in shown.out
    assert "this is a reconstruction" in shown.err
    assert "b: its text before the edit is not told" in shown.err
    assert listed(folder / "out") == {"a": "one\n"}
    again = weft("checkout", SESSION, "--reconstruct", "--to", "out")
    assert "is not empty" in again.err
    kept = weft.json("checkout", SESSION, "--reconstruct", "--record", "--to", "more")
    assert [gap["path"] for gap in kept["gaps"]] == ["b"]
    assert kept["snapshot_id"] is not None
    third = weft("checkout", SESSION, "--to", "third")
    assert (third.code, "this is a reconstruction" in third.err, "without b: " in third.err) == (0, True, True)
    assert "reconstruction" in weft("resource", "show", "shop").out
    for wrong in (["--reconstruct"], ["--record", "--to", "x"], ["--reconstruct", "--yes", "--to", "x"]):
        assert weft("checkout", SESSION, *wrong).code == 2


def test_an_undo_says_that_what_was_before_the_writes_of_a_turn_is_not_known(weft: Shell) -> None:
    def written(*paths: str) -> None:
        notes = [{"kind": "written", "path": path} for path in paths]
        notes.append({"kind": "read", "path": "/srv/other"})
        answer = {"role": "assistant", "content": "done", "files": notes}
        weft.record("go on", response=answer)

    weft.record("only words")
    written("/srv/a", "/srv/b", "/srv/a")
    written("/srv/a")
    one = "  this turn wrote 1 file; what it was before it is not known, so it stays as it is\n"
    assert weft("undo", "main", "--dry-run").out.endswith(f"(nothing was done)\n{one}")
    assert weft("undo", "main").out.endswith(f"\n{one}")
    two = "  this turn wrote 2 files; what they were before it is not known, so they stay as they are\n"
    assert weft("undo", "main").out.endswith(f"\n{two}")
    assert weft("undo", "main", "--redo").out.endswith("\n  no files were touched\n")
    kept = weft("undo", "main", "--files", "keep").out
    assert kept.endswith("\n  this turn wrote 2 files; they stay as they are\n")
    assert weft("undo", "main").out.endswith("\n  no files were touched\n")


def test_a_session_that_was_undone_to_its_beginning_says_how_to_get_it_back(weft: Shell) -> None:
    made = weft.record("hello", session="my work")
    assert weft("undo", "my work").code == 0
    refused = weft("show", "my work")
    assert refused.code == 3
    assert "hint: all of it was undone: `weft undo 'my work' --redo` takes the last undo back\n" in refused.err
    assert weft.json("undo", "my work", "--redo")["session"]["head"] == made
    assert weft("undo").code == 0
    assert weft.json("undo", "--redo")["session"]["head"] == made, "of the latest session, though it has no turn now"
    assert weft("move", "my work", "--reset").code == 0
    plain = weft("show", "my work").err
    assert plain.endswith("hint: nothing is recorded in it, or all of it was undone\n")
    assert weft("undo", "my work", "--redo").code == 4
    assert weft("session", "create", "new").code == 0
    assert weft("show", "new").err == plain.replace("my work", "new")


def test_a_recorded_turn_is_given_its_files(weft: Shell, folder: Path) -> None:
    site = folder / "site"
    site.mkdir()
    weft.record("begin")
    assert weft("resource", "add", str(site), "--session", "main").code == 0
    for text in ("one\n", "two\n"):
        (site / "page").write_text(text)
        weft.record(text)
        kept = weft("resource", "snapshot", "site", "--turn", "main")
        assert kept.code == 0, kept.err
    assert weft("diff", "--files", "main~1", "main").out == "M page\n"
    (site / "page").write_text("three\n")
    refused = weft("resource", "snapshot", "site", "--turn", "main")
    assert (refused.code, "has its files of 'site' already" in refused.err) == (4, True)
    assert "`weft resource snapshot site --turn main --again`" in refused.err
    assert weft("resource", "snapshot", "site", "--turn", "main", "--again").code == 0
    assert weft("checkout", "main", "--to", "out").code == 0
    assert listed(folder / "out") == {"page": "three\n"}
    assert weft("undo", "main").code == 0
    assert listed(site) == {"page": "one\n"}
    assert weft("resource", "snapshot", "site", "--again").code == 2
    assert weft("resource", "snapshot", "site", "--turn", "nowhere").code == 3


def test_files_of_two_turns_are_compared(desk: Desk) -> None:
    assert desk.weft("diff", "--files", "main~1", "main").out == "A more\nM page\n"
    patch = desk.weft("diff", "--files", "-p", "main~1", "main").out
    assert "-one\n+two\n" in patch
    assert desk.weft("diff", "--files", "--exit-code", "main~1", "main").code == 1
    equal = desk.weft("diff", "--files", "--exit-code", "main", "main")
    assert (equal.code, equal.out, "equal" in equal.err) == (0, "", True)
    changes = desk.weft.json("diff", "--files", "main~1", "main")["changes"]
    assert [(one["path"], one["status"]) for one in changes] == [("more", "added"), ("page", "modified")]


def test_the_files_that_the_latest_turn_changed_are_shown_without_naming_it(weft: Shell, folder: Path) -> None:
    desk = Desk(weft, folder)
    first = desk.work(page="one\n")
    assert desk.weft("diff", "--files").out == "A page\n"
    assert desk.weft.json("diff", "--files")["left_id"] is None
    second = desk.work(page="two\n", more="x\n")
    shown = desk.weft("diff", "--files", "-p", "--exit-code")
    assert (shown.code, shown.out.splitlines()[:2]) == (1, ["A more", "@@ -0,0 +1 @@"]), shown
    assert "(main)" in shown.err
    told = desk.weft.json("diff", "--files")
    assert (told["left_id"], told["right_id"]) == (first, second)
    assert [(one["path"], one["status"]) for one in told["changes"]] == [("more", "added"), ("page", "modified")]
    desk.weft.record("Thanks")
    unchanged = desk.weft("diff", "--files")
    assert (unchanged.code, unchanged.out, "equal" in unchanged.err) == (0, "", True), unchanged
    assert desk.weft("diff").code == 2


def test_changed_files_that_something_runs_by_itself_are_named(desk: Desk, folder: Path) -> None:
    desk.weft("fork", "main", "alt")
    desk.work("alt", folder / "site-alt", **{".envrc": "evil\n", "Makefile": "all:\n", "more": "y\n"})
    named = "runs by itself: .envrc (direnv, when a shell enters the folder), Makefile (a build tool, when "
    compared = desk.weft("diff", "--files", "main", "alt")
    assert (compared.out, compared.err.startswith(named)) == ("A .envrc\nA Makefile\nM more\n", True)
    assert desk.weft.json("diff", "--files", "main", "alt")["runs_by_itself"].keys() == {".envrc", "Makefile"}
    gone = desk.weft("diff", "--files", "alt", "main")
    assert (gone.out, gone.err) == ("D .envrc\nD Makefile\nM more\n", "")
    merged = desk.weft("merge", "alt", "--into", "main", "--text", "it is better")
    assert (merged.code, named in merged.err) == (0, True), merged.err
    desk.work("alt", folder / "site-alt", **{"conftest.py": "evil\n", "plain": "text\n"})
    told = desk.weft("merge", "alt", "--into", "main", "--text", "still", "--json").json
    assert told["runs_by_itself"] == {"conftest.py": "the tests, when they are run"}


def test_a_merge_and_a_comparison_name_what_the_own_git_is_told_to_run(
    desk: Desk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = folder / "own-settings"
    settings.write_text("[core]\n\tsshCommand = ./connect -4\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    desk.weft("fork", "main", "alt")
    desk.work("alt", folder / "site-alt", **{"connect": "evil\n", "more": "y\n"})
    named = {"connect": "git, as core.sshCommand says"}
    assert desk.weft.json("diff", "--files", "main", "alt")["runs_by_itself"] == named
    told = desk.weft("merge", "alt", "--into", "main", "--text", "it is better", "--json").json
    assert told["runs_by_itself"] == named


def test_undo_and_redo(desk: Desk) -> None:
    planned = desk.weft("undo", "--dry-run")
    assert planned.code == 0, planned.err
    assert f"{desk.folder}: 2 paths would be: 1 changed, 1 removed, 0 restored" in planned.out
    assert listed(desk.folder) == {"more": "x\n", "page": "two\n"}
    answer = desk.weft("undo")
    assert answer.code == 0, answer.err
    assert f"{desk.folder}: 2 paths: 1 changed, 1 removed, 0 restored" in answer.out
    assert listed(desk.folder) == {"page": "one\n"}
    assert "undo: weft undo main --redo" in answer.err
    told = desk.weft.json("undo", "main", "--redo", "--dry-run")
    counts = {"place": str(desk.folder), "changed": 1, "removed": 0, "restored": 1, "is_whole": False, "error": None}
    assert (told["label"], told["directories"]) == ("main", [counts])
    assert desk.weft("undo").code == 0
    assert listed(desk.folder) == {}
    assert "no file differs" not in desk.weft("undo", "main", "--redo").out
    again = desk.weft.json("undo", "main", "--redo")
    assert (again["session"]["label"], again["directories"]) == ("main", [counts])
    assert listed(desk.folder) == {"more": "x\n", "page": "two\n"}
    assert desk.weft("undo", "main", "--redo").code == 4
    loose = Path(f"{find_ledger(None)}-files") / "trees" / "git" / "objects"
    before = [path for path in loose.rglob("*") if path.is_file()]
    assert desk.weft("pack").code == 0
    assert len([path for path in loose.rglob("*") if path.is_file()]) < len(before)
    assert desk.weft("diff", "--files", "main~1", "main").out == "A more\nM page\n"


def test_a_branch_is_merged_with_its_files(desk: Desk, folder: Path) -> None:
    desk.weft("fork", "main", "alt")
    desk.work("alt", folder / "site-alt", more="changed\n")
    desk.work(page="three\n")
    answer = desk.weft("merge", "alt", "--into", "main", "--text", "more is better")
    assert answer.code == 0, answer.err
    assert listed(desk.folder) == {"more": "changed\n", "page": "three\n"}
    assert "more is better" in desk.weft("show", "main").out
    desk.work("alt", folder / "site-alt", page="theirs\n")
    before = desk.weft.json("show", "main")["id"]
    conflict = desk.weft("merge", "alt", "--into", "main", "--pick")
    assert conflict.code == 1
    assert "page" in conflict.out
    assert listed(desk.folder)["page"] == "three\n"
    assert desk.weft.json("show", "main")["id"] == before
    told = desk.weft("merge", "alt", "--into", "main", "--pick", "--json").json
    assert [one["path"] for one in told["conflicts"]] == ["page"]


def test_a_branch_without_files_is_merged_as_a_conversation(weft: Shell) -> None:
    weft.record("hello")
    weft("fork", "main", "alt")
    weft.record("found it", session="alt")
    assert "no files were kept of it" in weft("merge", "alt", "--into", "main", "--text", "it is there").out
    assert "it is there" in weft("show", "main").out


def test_erasing_a_turn_takes_its_files_along(desk: Desk, folder: Path) -> None:
    secret = desk.work("other", note="hunter2 is the password\n")
    assert desk.weft("undo", "other").code == 0
    assert desk.weft("undo", "other", "--redo").code == 0
    (desk.folder / "note").write_text("nothing\n")
    desk.work("other", more="z\n")
    kept = Path(f"{find_ledger(None)}-files")

    def is_found() -> bool:
        with library.open(find_ledger(None)) as ledger:
            driver = directory_driver(ledger, load_resource_settings().snapshots)
            trees = driver.files.ids()
            shown = [one for tree in trees for one in driver.files.changes(None, tree) if one.path == "note"]
            lines = [line for one in shown for line in driver.files.text_diff(one) or ()]
            return any("hunter2" in line for line in lines) and bool(ledger.replica)

    assert is_found()
    answer = desk.weft("erase", secret, "--reason", "asked for", "--yes")
    assert answer.code == 0, answer.err
    assert "snapshots of their files went, too" in answer.err
    assert kept.exists()
    assert not is_found()
    assert desk.weft("verify").code == 0


def test_an_erasure_that_was_cut_short_is_finished_by_the_next(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = desk.weft.json("show", "main")["id"]
    with monkeypatch.context() as cut:
        cut.setattr("weft.surfaces.cli.ledgers.erasing._forget_files", lambda *_: None)
        assert desk.weft("erase", secret, "--reason", "asked for", "--yes").code == 0

    def states() -> set[str]:
        with library.open(find_ledger(None)) as ledger:
            return {one.state.value for one in ResourceLog(ledger).taken_in(secret)}

    assert states() == {"ok"}
    again = desk.weft("erase", secret, "--reason", "asked for", "--yes")
    assert (again.code, "snapshots of their files went, too" in again.err) == (0, True), again.err
    assert states() == {"discarded"}
    third = desk.weft("erase", secret, "--reason", "asked for", "--yes")
    assert "went, too" not in third.err, "what is gone is not told again"


def test_bisect_runs_the_check_in_the_files_of_each_turn(desk: Desk) -> None:
    third = desk.work(page="broken\n")
    desk.work(more="y\n")
    result = desk.weft.json("bisect", "main", "--restore", "--check", "! grep -q broken page")
    assert result["first_bad"] == third
    assert listed(desk.folder) == {"more": "y\n", "page": "broken\n"}
    assert desk.weft("bisect", "main", "--restore", "--model-check", "?").code == 2
