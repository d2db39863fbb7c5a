"""What a listing shows of a session is what every command takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.ledger.test_session_names import labels, populated
from tests.sizes import PROVING
from tests.surfaces.shell import Shell
from weft.ledger.api import Ledger
from weft.ledger.model import Session
from weft.surfaces.cli import command_line
from weft.surfaces.cli.screen import Screen

Taken = Callable[[Any, Session], bool]


def first_words(context: Any) -> str:
    """What the first message of a context says; an imported one begins with `ask`."""
    return str(context["messages"][0]["content"][0]["text"]).removeprefix("ask ")


def listed_names(page: str) -> Iterator[str]:
    """The first column of `weft sessions`."""
    header, *rows = page.split("\n\n")[0].splitlines()
    column = header.index(header.split()[1])
    return (row[:column].strip() for row in rows)


def logged_names(page: str) -> Iterator[str]:
    """The names in parentheses at the heads of `weft log --oneline`."""
    for places in re.findall(r"^\S+ \(([^)]*)\)", page, re.MULTILINE):
        yield from (place.partition(' "')[0] for place in places.split(", "))


def spent_names(page: str) -> Iterator[str]:
    """The first column of `weft usage --by session`, without titles."""
    rows = page.split("\ntotal ")[0].splitlines()[1:]
    return (re.split(r'  | "', row)[0] for row in rows)


def hit_names(page: str) -> Iterator[str]:
    """The line below the title of each group of `weft search`."""
    return iter(re.findall(r"^(\S.*?), (?:toy|weft), ", page, re.MULTILINE))


LISTINGS: Mapping[tuple[str, ...], Callable[[str], Iterator[str]]] = {
    ("sessions", "--all", "--subagents"): listed_names,
    ("log", "--oneline"): logged_names,
    ("usage", "--by", "session"): spent_names,
    ("search", "turn", "-n", "99"): hit_names,
}
"""By command how the names of sessions are read from what a terminal shows of it."""
COMMANDS: Mapping[tuple[str, ...], Taken] = {
    ("show",): lambda answer, session: answer["session_id"] == session.id,
    ("read",): lambda answer, session: answer[-1]["session"] == session.label,
    ("log", "--session"): lambda answer, session: answer[0]["session_id"] == session.id,
    ("context", "--session"): lambda answer, session: first_words(answer) == f"turn of {session.label}",
    ("reflog",): lambda answer, session: answer[0]["turn_id"] == session.head,
    ("tree",): lambda answer, session: answer[0]["id"] == session.head,
    ("usage", "--by", "session", "--session"): lambda answer, session: answer["rows"][0]["session_id"] == session.id,
    ("usage", "--branch"): lambda answer, session: answer["session_id"] == session.id,
    ("erase", "--dry-run"): lambda answer, session: answer["named_sessions"] == [session.id],
    ("export", "--as", "openai", "--force", "-o", "thread.json"): lambda answer, session: (
        f'turn of {session.label}"' in Path(answer["file"]).read_text()
    ),
    ("resume", "--as", "codex", "--in", ".", "--dry-run"): lambda answer, session: answer["turn_id"] == session.head,
}
"""By command that takes a name behind it, whether its JSON answer is about a session."""


@pytest.mark.slow("gives every command every name that a listing shows")
@settings(
    max_examples=60 if PROVING else 3,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(st.lists(labels, min_size=1, max_size=2, unique=True), st.lists(labels, max_size=1, unique=True), labels)
def test_every_command_takes_what_a_listing_shows(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, imported: list[str], own: list[str], alias: str
) -> None:
    own = [label for label in own if label not in imported]
    path = shell.folder / f"{len(list(shell.folder.iterdir()))}.db"
    with populated(imported, own, alias, path) as ledger:
        sessions = {listed.id: listed for listed in ledger.sessions(every=True)}
        names = shown_names(shell, ledger, path, monkeypatch, {*imported, *own})
    for name, session_id in names.items():
        for command, is_about in COMMANDS.items():
            answer = shell("--ledger", str(path), *command, name, "--json")
            if answer.code:
                assert answer.error["code"] == "ambiguous_name", (command, name, answer.err)
            else:
                assert is_about(answer.json, sessions[session_id]), (command, name, answer.out)


def shown_names(
    shell: Shell, ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch, labels: set[str]
) -> dict[str, str]:
    """By name the id of the session that it is shown for; every listing shows each session once."""
    short_labels = ledger.listing().short_labels()
    names = {short_labels[label]: ledger.session(label).id for label in labels}
    screen = Screen(color=False, unicode=True, terminal=True, columns=200, rows=24, paging=False)
    with monkeypatch.context() as patch:
        patch.setattr(command_line, "stdout_screen", lambda **_: screen)
        for command, names_of in LISTINGS.items():
            answer = shell("--ledger", str(path), *command)
            assert answer.code == 0, answer.err
            assert sorted(names_of(answer.out)) == sorted(names), (command, answer.out)
    return names
