"""The rules of a workspace: read where a person trusts the folder, recorded, and refused where they cannot be taken."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from weft.kernel.errors import InvalidInput, LimitExceeded
from weft.ledger.model import NewMessage
from weft.runtime.assembly.system_prompts import RULES_FILE, SystemPrompt, WorkspaceRules, changed_prompt, read_rules
from weft.runtime.sandbox.hidden_places import SecretFiles
from weft.store.replicas import TrustStore


def trusted(_: str) -> bool:
    return True


def test_the_file_of_a_trusted_folder_is_read_and_of_no_other(tmp_path: Path) -> None:
    (tmp_path / RULES_FILE).write_text("Write tests.")
    rules = read_rules(str(tmp_path), trusted)
    assert rules == WorkspaceRules(path="AGENTS.md", digest=sha256(b"Write tests.").hexdigest(), text="Write tests.")
    os.mkfifo(tmp_path / "pipe")
    assert read_rules(str(tmp_path), lambda _: False) is None
    (tmp_path / RULES_FILE).unlink()
    assert read_rules(str(tmp_path), trusted) is None


def test_a_link_within_the_folder_is_followed_and_told_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "rules.md").write_text("Be kind.")
    (tmp_path / RULES_FILE).symlink_to("docs/rules.md")
    rules = read_rules(str(tmp_path), trusted)
    assert rules is not None
    assert (rules.path, rules.text) == ("docs/rules.md", "Be kind.")


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
    with pytest.raises((InvalidInput, LimitExceeded)) as refused:
        read_rules(str(folder), trusted)
    assert "AGENTS.md" in str(refused.value)
    assert "a key" not in str(refused.value)


@pytest.mark.parametrize(("name", "more"), [(".env", ()), ("deploy/id_rsa", ()), ("own.secret", ("*.secret",))])
def test_rules_that_lead_to_a_file_of_secrets_are_not_read(tmp_path: Path, name: str, more: tuple[str, ...]) -> None:
    """A command that cannot read the file can make the link, and the rules are sent with every request."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("a key")
    (tmp_path / RULES_FILE).symlink_to(name)
    with pytest.raises(InvalidInput, match="hidden from commands") as refused:
        read_rules(str(tmp_path), trusted, lambda: (SecretFiles(more=more), None))
    assert "a key" not in str(refused.value)
    shown = SecretFiles(more=more, shown=lambda: [str(tmp_path / name)])
    rules = read_rules(str(tmp_path), trusted, lambda: (shown, None))
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
