"""Projects: worktrees and clones of one repository are one, by what sessions recorded or by what the opener knows."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from tests.ledger.imported import native_turn, take
from weft.kernel.authority import LOCAL, rights
from weft.kernel.errors import InvalidInput
from weft.ledger.api import Ledger, SessionFilter, project_of, repository_name
from weft.ledger.read.sessions import SESSIONS_LOOKED_AT, recorded_repository

CODEX = {"git": {"repository_url": "git@github.com:acme/shop.git"}}
COPILOT = {"repository": "Acme/shop"}
PULLED = {"pullRequests": [{"prUrl": "https://github.com/acme/shop/pull/12"}]}
FOLDERS: dict[str, Any] = {
    "/home/ann/src/shop": CODEX,
    "/home/ann/.codex/worktrees/9a6a/shop": CODEX,
    "/home/ann/.codex/worktrees/77ff/shop": None,
    "/home/ann/trees/fix-dates": COPILOT,
    "/home/ann/src/shop/web": None,
    "/home/ann/src/shop/.claude/worktrees/agent-1": None,
    "/home/bob/shop": PULLED,
    "/home/bob/tree": {"worktree": {"worktreePath": "/home/bob/tree", "originalCwd": "/home/bob/shop"}},
}
ALONE = {"/home/ann/other": {"pullRequests": PULLED["pullRequests"]}, "/home/eve/shop": None}


@pytest.fixture
def ledger() -> Ledger:
    opened = weft.open(":memory:")
    for number, (folder, metadata) in enumerate((FOLDERS | ALONE).items()):
        turn = native_turn(f"turn-{number}-of-a-session", started=1_000 + number, workspace=folder, end=10)
        take(opened, f"s{number}", turn, file=f"{number}.jsonl", workspace=folder, metadata=metadata)
    return opened


def test_worktrees_and_clones_of_one_repository_are_one_project(ledger: Ledger) -> None:
    with ledger:
        everything = {listed.session.workspace_path: listed.project for listed in listed_sessions(ledger)}
        assert everything == {**dict.fromkeys(FOLDERS, "shop"), "/home/ann/other": "other", "/home/eve/shop": "shop"}
        for wanted in ("github.com/acme/shop", "GitHub.com/Acme/Shop", "/home/ann/trees/fix-dates"):
            assert {listed.session.workspace_path for listed in listed_sessions(ledger, wanted)} == set(FOLDERS)
            hits = ledger.search("ask", project=wanted, role="user")
            assert len(hits) == len(FOLDERS)
            assert ledger.usage.report("model", project=wanted).total.total == 15 * len(FOLDERS)
        assert len(listed_sessions(ledger, "fix-dates")) == 1
        assert len(ledger.search("ask", project="fix-dates", role="user")) == 1


def test_reports_tell_a_repository_once(ledger: Ledger) -> None:
    with ledger:
        rows = {row.key: row.total for row in ledger.usage.report("project").rows}
        keys = ("github.com/acme/shop", "/home/ann/other", "/home/eve/shop")
        assert rows == dict(zip(keys, (15 * len(FOLDERS), 15, 15), strict=True))
        work = {project.path: project for project in ledger.usage.work().projects}
        assert set(work) == set(keys)
        assert (work[keys[0]].name, len(work[keys[0]].sessions)) == ("shop", len(FOLDERS))


def listed_sessions(ledger: Ledger, project: str | None = None) -> list[Any]:
    return ledger.listing().sessions(SessionFilter(project=project)).sessions


def test_whoever_opens_a_ledger_may_know_more_of_a_folder() -> None:
    def repository_of(folder: str) -> str | None:
        return "/src/app" if folder.startswith("/src/") else None

    with weft.open(":memory:", repository_of=repository_of) as ledger:
        for folder in ("/src/app", "/src/app-fix", "/srv/app"):
            usage = {"input_tokens": 5}
            answer = {"role": "assistant", "content": "ok", "files": [{"kind": "written", "path": f"{folder}/a.py"}]}
            ledger.record_turn(
                session=folder[1:].replace("/", "-"), query="ask", response=answer, workspace=folder, usage=usage
            )
        assert {row.key for row in ledger.usage.report("project").rows} == {"/src/app", "/srv/app"}
        (app,) = (project for project in ledger.usage.work().projects if project.path == "/src/app")
        assert [(file.path, file.changes) for file in app.files] == [("/src/app/a.py", 1), ("a.py", 1)]
        assert len(ledger.search("ask", project="/src/app", role="user")) == 2
    with pytest.raises(InvalidInput, match="repository_of is int"):
        weft.open(":memory:", repository_of=1)  # type: ignore[arg-type]


def test_a_session_recorded_here_has_the_project_of_the_turn_it_stands_on() -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="prepo", query="ask", workspace="/src/prepo/repo")
        ledger.record_turn(session="nowhere", query="ask")
        assert {listed.session.label: listed.project for listed in listed_sessions(ledger)} == {
            "prepo": "repo", "nowhere": "",
        }  # fmt: skip
        for wanted in ("repo", "/src/prepo/repo"):
            assert [listed.session.label for listed in listed_sessions(ledger, wanted)] == ["prepo"]
            assert [hit.place for hit in ledger.search_sessions("repo", project=wanted)] == ["project"]


def test_any_folder_of_a_repository_without_a_remote_means_all_of_it() -> None:
    def repository_of(folder: str) -> str | None:
        return "/src/app" if folder.startswith("/src/app") else None

    with weft.open(":memory:", repository_of=repository_of) as ledger:
        for label, folder in (("top", "/src/app"), ("below", "/src/app/sub"), ("other", "/src/other")):
            ledger.record_turn(session=label, query="ask", workspace=folder)
        for wanted in ("/src/app", "/src/app/sub", "/src/app/sub/"):
            assert {listed.session.label for listed in listed_sessions(ledger, wanted)} == {"top", "below"}
            assert len(ledger.search("ask", project=wanted)) == 2


def test_a_limited_reader_sees_the_same_projects() -> None:
    noted: list[Any] = [CODEX, *[{"title": "nothing of a repository"}] * SESSIONS_LOOKED_AT]
    with weft.open(":memory:") as ledger:
        limited = ledger.acting_as(LOCAL.child(rights(["*"])))
        for number, metadata in enumerate(noted):
            turn = native_turn(f"turn-{number}", started=1_000 + number, workspace="/a/b", end=10)
            take(ledger, f"s{number}", turn, file=f"{number}.jsonl", workspace="/a/b", metadata=metadata)
        assert {listed.project for listed in listed_sessions(ledger)} == {"b"}
        assert {listed.project for listed in listed_sessions(limited)} == {"b"}
        turn = native_turn("turn-last", started=3_000, workspace="/a/b", end=10)
        take(ledger, "last", turn, file="last.jsonl", workspace="/a/b", metadata=COPILOT)
        assert {listed.project for listed in listed_sessions(limited)} == {"shop"}


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/jdx/hk.git", "github.com/jdx/hk"),
        ("https://me:secret@GitHub.com/jdx/hk/", "github.com/jdx/hk"),
        ("git@github.com:jdx/hk.git", "github.com/jdx/hk"),
        ("ssh://git@host.example:2222/a/b/c.git", "host.example/a/b/c"),
        ("file:///srv/git/x.git", None),
        ("/srv/git/x.git", None),
        ("[trimmed for fixture]", None),
        ("https://github.com/a\x1b[2J/b", None),
        ("https://github.com/" + "a" * 500, None),
        ("", None),
    ],
)
def test_a_remote_is_named_without_what_is_secret_or_hostile(address: str, name: str | None) -> None:
    assert repository_name(address) == name


@pytest.mark.parametrize(
    "metadata",
    [None, [], {"git": "x"}, {"git": {"repository_url": 3}}, {"repository": "a b/c"}, {"repository": ["a/b"]},
     {"pullRequests": {"prUrl": "x"}}, {"pullRequests": [3, {"prUrl": 4}]}, {"worktree": {"worktreePath": "/f"}},
     {"worktree": {"worktreePath": "/f", "originalCwd": "/f"}}, {"worktree": {"worktreePath": "/f", "originalCwd": 1}}],
)  # fmt: skip
def test_odd_notes_name_no_repository(metadata: Any) -> None:
    known = recorded_repository(metadata, "/f")
    assert (known.repository, known.main_folder) == (None, None)


def test_the_name_of_a_folder() -> None:
    assert [project_of(folder) for folder in ("/a/b/", "C:\\x\\y", "/home/ann", "/", None)] == ["b", "y", "~", "/", ""]
