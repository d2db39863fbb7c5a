"""A fork's first request is what its parent was sent at that place: folders, rules and options come along."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.caching_provider import CachingProvider
from tests.runtime.broker.test_prompt_caches import LEAST_SHARE, CachedAgent, Calls, without_markers
from tests.runtime.inference.asking import CANARY
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from weft.runtime.inference.model_requests import Dialect
from weft.surfaces.cli.user_files import trust_store

RULES = "Write every page in short sentences, and say what it is about first. " * 120
WRITE: Calls = [("write", {"path": "page", "content": "one\n"})]
WIRES = (Dialect.ANTHROPIC, Dialect.OPENAI_RESPONSES, Dialect.OPENAI_CHAT)
TYPES = {Dialect.ANTHROPIC: "anthropic", Dialect.OPENAI_RESPONSES: "openai", Dialect.OPENAI_CHAT: "openai-compatible"}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE_KEY", CANARY)


class Writer:
    """An agent that writes pages in a folder with rules, which the person trusts for work."""

    def __init__(self, weft: Shell, agent: CachedAgent, folder: Path) -> None:
        self.weft, self.agent, self.site = weft, agent, folder / "site"
        self.site.mkdir()
        (self.site / "AGENTS.md").write_text(RULES)

    def must(self, *words: str) -> str:
        answer = self.weft(*words)
        assert answer.code == 0, answer.err
        return answer.err

    def send(self, text: str, *words: str, steps: tuple[Calls, ...] = ()) -> str:
        """Sends a message, which takes these steps and an answer; gives what stood on standard error."""
        self.agent.steps = list(steps)
        return self.must("send", text, *words)

    @property
    def last(self) -> Any:
        return without_markers(self.agent.server.received[-1].body)

    def share_of_last(self, earlier: int = -2) -> float:
        """How much of an earlier prompt the last request read from the cache."""
        counts = self.agent.caches.counts
        return counts[-1].read / min(counts[earlier].tokens, counts[-1].tokens)


@contextmanager
def writing(weft: Shell, folder: Path, dialect: Dialect = Dialect.OPENAI_CHAT) -> Iterator[Writer]:
    with serving() as server:
        writer = Writer(weft, CachedAgent(dialect, server), folder)
        writer.agent.caches = CachingProvider(dialect, needs_key=dialect is Dialect.OPENAI_RESPONSES)
        url = ("--base-url", server.url, "--key-env", "THERE_KEY")
        writer.must("provider", "create", "there", "--type", TYPES[dialect], *url)
        writer.must("model", "create", "fast", "--backend", "m-1", "--provider", "there")
        writer.must("model", "create", "other", "--backend", "m-2", "--provider", "there")
        writer.must("toolset", "create", "pages", "--allow", "read", "--allow", "write", "--allow", "list")
        writer.must("agent", "create", "ada", "--model", "fast", "--prompt", "You write pages.")
        writer.must("trust", str(writer.site), "--work")
        yield writer


@pytest.mark.parametrize("dialect", WIRES)
def test_a_fork_whose_folder_is_copied_is_sent_the_rules_and_tools_of_its_original(
    weft: Shell, folder: Path, dialect: Dialect
) -> None:
    with writing(weft, folder, dialect) as writer:
        writer.must("agent", "configure", "ada", "--set", "toolset=pages")
        writer.send("Begin", "--persona", "ada", "--in", str(writer.site), steps=(WRITE,))
        assert (writer.site / "page").read_text() == "one\n"
        writer.must("fork", "ada:main", "alt")
        assert (folder / "site-alt" / "page").is_file()
        writer.send("Go on", "--session", "alt")
        forked, share = writer.last, writer.share_of_last()
        writer.send("Go on", "--session", "ada:main")
        assert RULES in json.dumps(forked)
        assert forked == writer.last, "part by part what the parent is sent there"
        assert share >= LEAST_SHARE


def test_a_copy_of_a_folder_is_trusted_as_its_original_and_as_long(weft: Shell, folder: Path) -> None:
    with writing(weft, folder) as writer:
        writer.must("agent", "configure", "ada", "--set", "toolset=pages")
        writer.send("Begin", "--persona", "ada", "--in", str(writer.site), steps=(WRITE,))
        copies = [folder / f"site-{label}" for label in ("one", "two", "three")]
        assert f"{copies[0]} is trusted for work as {writer.site} is" in writer.must("fork", "ada:main", "one")
        writer.must("trust", str(writer.site), "--work", "--revoke")
        assert not trust_store().is_trusted_for_work(str(copies[0]))
        assert trust_store().is_folder_trusted(str(copies[0]))
        writer.must("fork", "ada:main", "two")
        assert trust_store().is_folder_trusted(str(copies[1]))
        assert not trust_store().is_trusted_for_work(str(copies[1]))
        writer.must("trust", str(writer.site), "--revoke")
        assert not any(trust_store().is_folder_trusted(str(copy)) for copy in copies[:2])
        writer.must("trust", str(copies[1]))
        writer.must("fork", "ada:main", "three")
        assert not trust_store().is_folder_trusted(str(copies[2]))
        assert trust_store().is_folder_trusted(str(copies[1])), "trusted by itself"


def test_a_no_to_work_in_a_folder_is_one_to_work_in_its_copy(weft: Shell, folder: Path) -> None:
    with writing(weft, folder) as writer:
        writer.must("agent", "configure", "ada", "--set", "toolset=pages")
        writer.send("Begin", "--persona", "ada", "--in", str(writer.site), steps=(WRITE,))
        writer.must("trust", str(folder), "--work")
        writer.must("trust", str(writer.site), "--work", "--revoke")
        writer.must("fork", "ada:main", "alt")
        assert (folder / "site-alt" / "page").is_file()
        assert trust_store().is_trusted_for_work(str(folder))
        assert not trust_store().is_trusted_for_work(str(folder / "site-alt"))


@pytest.mark.parametrize("dialect", WIRES)
def test_what_a_turn_was_sent_with_is_a_forks_default(weft: Shell, folder: Path, dialect: Dialect) -> None:
    with writing(weft, folder, dialect) as writer:
        options = ("--toolset", "pages", "--model", "other", "--deny", "write", "--set", "maxTokens=77")
        writer.send("Begin", "--persona", "ada", "--in", str(writer.site), *options)
        parent = writer.last
        writer.must("fork", "ada:main", "alt")
        writer.send("Go on", "--session", "alt")
        forked = writer.last
        field = "input" if dialect is Dialect.OPENAI_RESPONSES else "messages"
        assert forked["tools"] == parent["tools"]
        assert "write" not in [tool.get("name") or tool["function"]["name"] for tool in parent["tools"]]
        assert forked[field][: len(parent[field])] == parent[field]
        rest = [{name: value for name, value in body.items() if name != field} for body in (forked, parent)]
        assert rest[0] == rest[1]
        assert writer.share_of_last() >= LEAST_SHARE
        writer.send("Go on", "--session", "ada:main")
        assert writer.last["model"] == "m-1", "for that one message in its own session"
        writer.send("Go on", "--thread", "ada:main~1", "--model", "fast", "--deny", "list")
        names = [tool.get("name") or tool["function"]["name"] for tool in writer.last["tools"]]
        assert (writer.last["model"], "write" in names) == ("m-1", True), "its own options replace them"


def test_a_session_and_its_forks_keep_the_folder_and_another_one_is_announced(
    weft: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(weft, folder) as writer:
        other = folder / "other"
        other.mkdir()
        writer.must("trust", str(other))

        def place(rev: str) -> str:
            return str(weft.json("show", rev)["workspace_path"])

        writer.send("Begin", "--persona", "ada", "--in", str(writer.site))
        monkeypatch.setenv("WEFT_LEDGER", str(folder / ".weft" / "ledger.db"))
        monkeypatch.chdir(other)
        told = writer.send("Go on", "--persona", "ada")
        assert f"in {writer.site}, as the turn before" in told
        assert place("ada:main") == str(writer.site)
        writer.must("fork", "ada:main", "alt")
        assert f"in {writer.site}" in writer.send("Go on", "--session", "alt")
        assert place("alt") == str(writer.site)
        assert RULES in json.dumps(writer.last)
        writer.send("What if", "--thread", "ada:main~1")
        assert RULES in json.dumps(writer.last)
        told = writer.send("Here", "--session", "alt", "--in", str(other))
        assert f"in {other}; the turn before worked in {writer.site}" in told
        assert place("alt") == str(other)
        assert f"in {other}" not in writer.send("Here", "--session", "alt"), "it is this folder"
        monkeypatch.chdir(writer.site)
        os.rename(other, folder / "gone")
        told = writer.send("Go on", "--session", "alt")
        assert f"in {writer.site}: {other}, where the turn before worked, is not there any more" in told


def test_an_imported_or_recorded_turn_names_no_folder_to_work_in(weft: Shell, folder: Path) -> None:
    with writing(weft, folder) as writer:
        weft.record("Begin", workspace=str(writer.site))
        assert weft.json("show", "main")["workspace_path"] == str(writer.site)
        writer.send("Go on", "--session", "main", "--model", "fast")
        assert weft.json("show", "main")["workspace_path"] is None


def test_a_session_is_forked_before_its_first_turn_and_begins_with_another_model(weft: Shell, folder: Path) -> None:
    with writing(weft, folder) as writer:
        settings = ("--set", "defaultModelConfig.maxTokens=77", "--set", "toolset=pages")
        writer.must("session", "create", "start", "--owner", "ada", "--model", "fast", *settings)
        assert "would begin as it does" in writer.must("fork", "start", "other", "--dry-run")
        assert weft("show", "other").code == 3
        assert "other" not in [session["label"] for session in weft.json("sessions")]
        answer = weft("fork", "start", "other")
        assert (answer.code, "other begins as start does" in answer.out) == (0, True), answer.err
        assert "undo: weft delete other" in answer.err
        writer.must("session", "configure", "other", "--model", "other")
        writer.send("Begin", "--session", "start", "--in", str(writer.site))
        original = writer.last
        writer.send("Begin", "--session", "other", "--in", str(writer.site))
        assert (original.pop("model"), writer.last["model"]) == ("m-1", "m-2")
        assert original == {name: value for name, value in writer.last.items() if name != "model"}
        assert original["tools"]
        assert weft("fork", "start", "third", "--files", "keep").code == 0, "it has a turn now"
        assert weft("fork", "nowhere", "third").code == 3


def test_a_session_that_was_undone_to_its_beginning_is_not_one_that_has_not_begun(weft: Shell) -> None:
    weft.record("Begin")
    assert weft("undo", "main").code == 0
    refused = weft("fork", "main", "other")
    assert (refused.code, "all of it was undone" in refused.err) == (3, True)


def test_agent_run_asks_the_model_that_is_named(weft: Shell, folder: Path) -> None:
    with writing(weft, folder) as writer:
        writer.must("agent", "run", "ada", "Write", "--in", str(writer.site), "--model", "other")
        assert writer.last["model"] == "m-2"
        writer.must("agent", "run", "ada", "Write", "--in", str(writer.site))
        assert writer.last["model"] == "m-1"
