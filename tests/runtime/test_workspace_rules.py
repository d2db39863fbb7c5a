"""The rules of a workspace: read where a person trusts the folder, recorded, and refused where they cannot be taken."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from weft.kernel.errors import InvalidInput
from weft.ledger.model import NewMessage
from weft.runtime.assembly.system_prompts import (
    RULES_FILE,
    ChangedRules,
    SystemPrompt,
    WorkspaceRules,
    changed_prompt,
    load_rules,
    read_rules,
)
from weft.runtime.sandbox.hidden_places import SecretFiles
from weft.store.replicas import SeenRules, TrustedFolder, TrustStore

FOLDER = TrustedFolder(place="/work", owner=1, inode=1, since=1)


def seeing(text: str | None) -> SeenRules:
    """What the person saw."""
    return SeenRules(folder=FOLDER, text=text)


def test_the_file_of_a_trusted_folder_is_read_and_of_no_other(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text("Write tests.")
    rules = read_rules(str(tmp_path), lambda _: seeing("Write tests."))
    assert rules == WorkspaceRules(path="AGENTS.md", digest=sha256(b"Write tests.").hexdigest(), text="Write tests.")
    os.mkfifo(tmp_path / "pipe")
    assert read_rules(str(tmp_path), lambda _: None) is None
    (tmp_path / RULES_FILE).unlink()
    assert read_rules(str(tmp_path), lambda _: seeing(None)) is None


@pytest.mark.parametrize(
    ("seen", "present"), [("Write tests.", "Obey."), (None, "Obey."), ("Write tests.", None), ("Write tests.", " \n")]
)
def test_only_what_the_person_saw_is_told(tmp_path: Path, seen: str | None, present: str | None) -> None:
    changes: list[ChangedRules] = []
    if present is not None:
        (tmp_path / RULES_FILE).write_text(present)
    rules = read_rules(str(tmp_path), lambda _: seeing(seen), on_change=changes.append)
    assert (None if rules is None else (rules.path, rules.text)) == (None if seen is None else (RULES_FILE, seen))
    assert [change.is_refused for change in changes] == [False]
    assert all(f"+{present}" in change.difference for change in changes if present == "Obey.")


def test_a_change_that_no_line_shows_is_a_change(tmp_path: Path) -> None:
    changes: list[ChangedRules] = []
    (tmp_path / RULES_FILE).write_bytes("a\u2028b\r\n".encode())
    read_rules(str(tmp_path), lambda _: seeing("a\nb\n"), on_change=changes.append)
    assert [change.difference != "" for change in changes] == [True]


def test_the_line_break_at_the_end_of_both_rules_is_no_line_of_the_difference(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("# Rules\nUse tabs.\nUse spaces.\n")
    changes: list[ChangedRules] = []
    read_rules(str(tmp_path), lambda folder: seeing("# Rules\nUse tabs.\n"), None, changes.append)
    (change,) = changes
    assert change.difference.split("\n")[2:] == ["@@ -1,2 +1,3 @@", " # Rules", " Use tabs.", "+Use spaces."]


def test_a_link_within_the_folder_is_followed_and_where_it_leads_is_recorded_and_not_told(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "rules.md").write_text("Be kind.")
    (tmp_path / RULES_FILE).symlink_to("docs/rules.md")
    rules = load_rules(str(tmp_path))
    assert rules is not None
    assert (rules.path, rules.text) == ("docs/rules.md", "Be kind.")
    assert rules.prompt_text == "Rules of this workspace, from its file AGENTS.md:\n\nBe kind."


@pytest.mark.parametrize("form", ["link out", "pipe", "folder", "too long", "no text"])
def test_what_cannot_be_taken_is_refused_with_a_word(tmp_path: Path, form: str) -> None:
    folder, file = tmp_path / "work", tmp_path / "work" / RULES_FILE
    folder.mkdir()
    if form == "link out":
        (tmp_path / "secret").write_text("a key")
        file.symlink_to("../secret")
    elif form == "pipe":
        os.mkfifo(file)
    elif form == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"x" * 70_000 if form == "too long" else b"\xff\xfe\x00")
    with pytest.raises(InvalidInput) as refused:
        load_rules(str(folder))
    assert "AGENTS.md" in str(refused.value)
    assert "a key" not in str(refused.value)
    for seen in (None, "Write tests."):
        changes: list[ChangedRules] = []
        rules = read_rules(str(folder), lambda _, text=seen: seeing(text), on_change=changes.append)  # type: ignore[misc]
        assert (None if rules is None else rules.text) == seen, "agents are told what the person saw"
        assert [change.problem for change in changes] == [str(refused.value)]


@pytest.mark.parametrize(("name", "more"), [(".env", ()), ("deploy/id_rsa", ()), ("own.secret", ("*.secret",))])
def test_rules_that_lead_to_a_file_of_secrets_are_not_read(tmp_path: Path, name: str, more: tuple[str, ...]) -> None:
    """A command that cannot read the file can make the link, and the rules are sent with every request."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a key")
    (tmp_path / RULES_FILE).symlink_to(name)
    with pytest.raises(InvalidInput, match="hidden from commands") as refused:
        load_rules(str(tmp_path), lambda: (SecretFiles(more=more), None))
    assert "a key" not in str(refused.value)
    shown = SecretFiles(more=more, shown=lambda: [str(tmp_path / name)])
    rules = load_rules(str(tmp_path), lambda: (shown, None))
    assert rules is not None


def test_a_folder_is_trusted_by_its_place_and_inode_beside_the_ledgers(tmp_path: Path) -> None:
    store, folder = TrustStore(tmp_path / "state" / "trust.json"), tmp_path / "work"
    folder.mkdir()
    assert not store.is_folder_trusted(str(folder))
    store.allow_folder(str(folder))
    (tmp_path / "link").symlink_to(folder)
    assert store.is_folder_trusted(str(tmp_path / "link"))
    assert not store.is_folder_trusted(str(tmp_path)), "not what lies above"
    (folder / "below").mkdir()
    assert not store.is_folder_trusted(str(folder / "below")), "nor what lies in it"
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    assert not store.is_folder_trusted(str(folder)), "another folder has taken its place"
    assert store.revoke_folder(str(folder))
    assert store.folders() == ()
    with pytest.raises(InvalidInput):
        store.allow_folder(str(tmp_path / "nothing"))


RULES = WorkspaceRules(path="AGENTS.md", digest="d1", text="Write tests.")


def test_rules_stand_behind_the_prompt_and_are_brought_only_where_they_changed() -> None:
    (first,), is_replaced = changed_prompt(SystemPrompt(text="Be brief.", persona="ada", rules=RULES), [])
    assert not is_replaced
    assert [part.text for part in first.content] == ["Be brief.", RULES.prompt_text]  # type: ignore[union-attr]
    assert first.context == {"persona": "ada", "rules": [{"path": "AGENTS.md", "digest": "d1"}]}
    assert changed_prompt(SystemPrompt(text="Be brief.", rules=RULES), [first]) == ([], False)
    assert changed_prompt(SystemPrompt(rules=RULES), [first]) == ([], False), "the prompt so far stays"
    (without,), is_replaced = changed_prompt(SystemPrompt(), [first])
    assert (without.content, without.context, is_replaced) == ("Be brief.", None, True)
    (alone,), _ = changed_prompt(SystemPrompt(rules=RULES), [])
    assert alone.content == RULES.prompt_text
    assert changed_prompt(SystemPrompt(), [alone]) == ([], True)


def test_the_prompt_of_an_embedded_model_is_no_other_models() -> None:
    (default,), _ = changed_prompt(SystemPrompt(default="You are small."), [])
    assert changed_prompt(SystemPrompt(default="Another."), [default]) == ([], False)
    assert changed_prompt(SystemPrompt(), [default]) == ([], True)
    (both,), _ = changed_prompt(SystemPrompt(default="You are small.", rules=RULES), [default])
    (rules,), is_replaced = changed_prompt(SystemPrompt(rules=RULES), [both])
    assert (rules.content, is_replaced) == (RULES.prompt_text, True)
    plain = NewMessage(role=default.role, content="Given.")
    assert changed_prompt(SystemPrompt(default="You are small."), [plain]) == ([], False)


def test_what_was_seen_of_the_rules_stays_with_the_folder(tmp_path: Path) -> None:
    store, folder = TrustStore(tmp_path / "state" / "trust.json"), tmp_path / "work"
    folder.mkdir()
    store.take_rules(str(folder), "Obey.")
    assert store.seen_rules(str(folder)) is None, "nobody trusts it"
    store.allow_folder(str(folder))
    seen = store.seen_rules(str(folder))
    assert seen is not None
    assert (seen.text, seen.digest) == (None, "")
    store.take_rules(str(folder), "Write tests.\r\n")
    store.allow_folder(str(folder), for_work=True)
    store.refuse_rules(str(folder), "d1")
    seen = store.seen_rules(str(folder))
    assert seen is not None
    assert (seen.text, seen.refused) == ("Write tests.\r\n", "d1")
    store.revoke_work(str(folder))
    assert store.seen_rules(str(folder)) == seen
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    assert store.seen_rules(str(folder)) is None
    store.allow_folder(str(folder))
    seen = store.seen_rules(str(folder))
    assert seen is not None
    assert seen.text is None, "another folder has taken its place"
    store.revoke_folder(str(folder))
    store.allow_folder(str(folder))
    assert "Write tests." not in store.path.read_text()
