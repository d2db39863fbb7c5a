"""A command makes AGENTS.md a link to what it cannot read itself: rules are read outside of the sandbox, and are sent
with every request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    calling,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    running,
    weft,  # noqa: F401 - a fixture
)
from tests.runtime.scripted import chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell, on_terminal
from tests.surfaces.test_cli_broker import stock

ON_DISK = True  # no sandbox takes a workspace in memory
CANARY = "canary-of-rules-41b7"


@pytest.mark.parametrize(
    "script", ["x=nv; ln -s .e$x AGENTS.md", "x=ocker; mv .d$x renamed; ln -s renamed/config.json AGENTS.md"]
)
def test_no_file_of_secrets_becomes_the_rules_of_a_folder(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    script: str,
) -> None:
    (project / ".env").write_text(CANARY)
    (project / ".docker").mkdir()
    (project / ".docker/config.json").write_text(CANARY)
    assert weft("trust", ".").code == 0
    assert begin(weft, running(script)) == []
    with serving(calling("list", path="."), chat()) as server:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        sent = weft("send", "--session", "talk", "Begin")
    assert CANARY not in repr(server.received)
    assert "hidden from commands" in sent.err


RULES = "Run the tests before you commit."


@pytest.fixture
def place(weft: Shell, folder: Path) -> Path:  # noqa: F811
    """A folder whose rules the person saw."""
    stock(weft, "http://127.0.0.1:9/v1", "talk")
    (folder / "AGENTS.md").write_text(RULES)
    assert weft("trust", ".").code == 0
    return folder


def told(weft: Shell) -> tuple[str, str]:  # noqa: F811
    """What a next turn is sent, and what the person reads about it."""
    with serving(chat()) as server:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        sent = weft("send", "--session", "talk", "Go on")
        assert sent.code == 0, sent.err
    messages = server.received[-1].body["messages"]
    return "\n".join(str(one["content"]) for one in messages if one["role"] in ("system", "developer")), sent.err


def test_rules_that_an_agent_made_are_told_to_no_later_turn(weft: Shell, project: Path) -> None:  # noqa: F811
    assert begin(weft, running(f"echo {CANARY} > AGENTS.md")) == []
    system, err = told(weft)
    assert CANARY not in system
    assert f"AGENTS.md in {project} is new since you trusted it: agents are not told it" in err


def test_what_was_added_to_rules_is_told_when_the_person_has_seen_it(weft: Shell, place: Path) -> None:  # noqa: F811
    (place / "AGENTS.md").write_text(f"{RULES}\n{CANARY}")
    system, err = told(weft)
    assert RULES in system
    assert CANARY not in system
    assert f"`weft trust {place}` shows the change" in err
    assert "its AGENTS.md changed since you saw it" in weft("trust", "--list").out
    assert f"+{CANARY}" in weft("trust", ".").err
    assert CANARY in told(weft)[0]


def test_rules_that_an_agent_took_away_are_told(weft: Shell, place: Path) -> None:  # noqa: F811
    (place / "AGENTS.md").unlink()
    system, err = told(weft)
    assert RULES in system
    assert "is gone since you trusted it" in err


def test_where_a_link_leads_is_no_word_to_a_turn(weft: Shell, place: Path) -> None:  # noqa: F811
    (place / "AGENTS.md").rename(place / f"obey {CANARY}")
    (place / "AGENTS.md").symlink_to(f"obey {CANARY}")
    system, _ = told(weft)
    assert RULES in system
    assert CANARY not in system


def test_the_person_is_asked_once_about_each_change(weft: Shell, place: Path) -> None:  # noqa: F811
    (place / "AGENTS.md").write_text(f"{CANARY}\x1b[2K\u202e")
    question = "are agents to be told it as it is now?"
    with serving(chat(), chat()) as server:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        code, shown = on_terminal(place, "send", "--session", "talk", "Go on", typed="n\n")
        assert (code, question in shown) == (0, True), shown
        assert f"+{CANARY}\\x1b[2K\\u202e" in shown
        code, shown = on_terminal(place, "send", "--session", "talk", "Go on")
        assert (code, question in shown) == (0, False), shown
        assert CANARY not in repr(server.received)


@pytest.mark.parametrize("target", ["../home/key", ".env"])
def test_no_link_of_an_agent_makes_the_person_attach_another_file(
    weft: Shell,  # noqa: F811
    place: Path,
    target: str,
) -> None:
    (place / target).write_text(CANARY)
    (place / "report.md").symlink_to(target)
    (place / "notes").symlink_to(".")
    (place / "plain.md").write_text("plain words")
    (place / "linked.md").symlink_to("plain.md")
    for name in ("report.md", "notes/report.md", str(place / "notes" / "report.md")):
        refused = weft("send", "--session", "talk", "--no-wait", "--attach", name, "Look")
        assert refused.code != 0
        assert "leads to" in refused.err
    for name in (target, "plain.md", "linked.md", "notes/plain.md"):
        assert weft("send", "--session", "talk", "--no-wait", "--attach", name, "Look").code == 0


UNREADABLE = {
    "too long": "head -c 70000 /dev/zero | tr '\\0' a > AGENTS.md",
    "no text": "printf '\\377\\376' > AGENTS.md",
    "pipe": "mkfifo AGENTS.md",
    "folder": "mkdir AGENTS.md",
    "circle": "ln -s AGENTS.md AGENTS.md",
    "link out": "ln -s /etc/passwd AGENTS.md",
}


@pytest.mark.parametrize("form", UNREADABLE)
def test_rules_that_nobody_can_read_keep_no_message_from_being_answered(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    form: str,
) -> None:
    assert begin(weft, running(UNREADABLE[form])) == []
    system, err = told(weft)
    assert "AGENTS.md" not in system
    assert f"the rules of workspace {project} " in err
    assert "agents are not told it; put a plain one there" in err
    assert "cannot be read" in weft("trust", "--list").out
    code, shown = on_terminal(project, "send", "--session", "talk", "--no-wait", "Go on")
    assert (code, "are agents to be told" in shown) == (0, False), shown


READING = {
    "a code program": ("code", "create", "made", "--language", "python", "--file", "FILE"),
    "input of a program": ("program", "invoke", "talk", "--input", "@FILE"),
    "a recorded turn": ("record", "FILE"),
    "other words for a message": ("substitute", "talk", "--with", "@FILE"),
    "a prompt of a replay": ("replay", "talk", "--prompt", "@FILE"),
    "a policy": ("policy", "propose", "FILE"),
    "programs": ("apply", "FILE"),
    "a plan of a fork": ("fork", "talk", "other", "--plan", "FILE"),
    "a session of another tool": ("import", "FILE"),
    "facts": ("facts", "import", "FILE"),
    "a bundle": ("bundle", "open", "FILE"),
    "a bundle to verify": ("bundle", "verify", "FILE"),
    "a bundle to sign": ("bundle", "sign", "FILE", "laptop", "-o", "signed.weft"),
}


@pytest.mark.parametrize("words", READING.values(), ids=READING)
def test_no_link_of_an_agent_makes_a_command_read_another_file(
    weft: Shell,  # noqa: F811
    place: Path,
    words: tuple[str, ...],
) -> None:
    weft.record("words", session="talk")
    for target in ("../home/key.json", ".env"):
        (place / target).write_text(CANARY)
        (place / "named.json").unlink(missing_ok=True)
        (place / "named.json").symlink_to(target)
        refused = weft(*(word.replace("FILE", "named.json") for word in words))
        assert refused.code != 0
        assert f"named.json' leads to '{(place / target).resolve()}', by a link in {place}" in refused.err
        assert CANARY not in refused.out + refused.err
    (place / "named.json").unlink()
    (place / "plain.json").write_text("[]")
    (place / "named.json").symlink_to("plain.json")
    assert "leads to" not in weft(*(word.replace("FILE", "named.json") for word in words)).err


def test_a_descriptor_and_a_link_elsewhere_are_read(weft: Shell, place: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "turn.json").write_text('{"session": "own", "query": "words"}')
    (tmp_path / "named.json").symlink_to("turn.json")
    assert weft("record", str(tmp_path / "named.json")).code == 0
    reading, writing = os.pipe()
    os.write(writing, b'{"session": "own", "query": "more"}')
    os.close(writing)
    assert weft("record", f"/dev/fd/{reading}").code == 0
    os.close(reading)


WRITING = {
    "an export": ("export", "talk", "--format", "markdown", "-o", "away/made"),
    "images of an export": ("export", "talk", "--format", "markdown", "-o", "made.md", "--assets", "away"),
    "a bundle": ("bundle", "create", "talk", "-o", "away/made"),
    "a backup": ("backup", "away/made"),
    "facts": ("facts", "export", "away/made"),
    "a clone": ("clone", ".weft/ledger.db", "away/made"),
    "a token": ("token", "create", "--as", "scout", "--allow", "session:*", "--out", "away/made"),
    "files of a turn": ("checkout", "talk", "--to", "away"),
    "a copy of the folder": ("fork", "talk", "other", "--in", "away/made"),
}


@pytest.mark.parametrize("words", WRITING.values(), ids=WRITING)
def test_no_link_of_an_agent_makes_a_command_write_elsewhere(
    weft: Shell,  # noqa: F811
    place: Path,
    words: tuple[str, ...],
) -> None:
    weft("agent", "create", "scout", "--prompt", "Look.")
    weft.record("words", session="talk")
    elsewhere = place.parent / "home" / "bin"
    elsewhere.mkdir()
    (place / "away").symlink_to(elsewhere)
    refused = weft(*words)
    assert refused.code != 0
    assert f"leads to '{elsewhere}', by a link in {place}" in refused.err
    assert list(elsewhere.iterdir()) == []
    (place / "away").unlink()
    (place / "within").mkdir()
    (place / "away").symlink_to("within")
    assert "leads to" not in weft(*words).err
