"""The importers' contract, and damaged exports, for those who export many conversations in one document."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.chatgpt import conversations as chatgpt
from tests.exchange.fixtures.claude_ai import exports as claude_ai
from tests.exchange.mutating import spoiled
from tests.exchange.reading import read
from weft.exchange.importers.port import Importer
from weft.exchange.importers.testing import as_source


class Export(Struct, frozen=True):
    """How one origin exports."""

    importer: Importer
    every: list[Any]
    """A document with all that there is."""
    dialogue: Callable[[str], Any]
    """A small conversation with this id."""


CHATGPT = Export(
    chatgpt.CHATGPT,
    [
        chatgpt.conversation(*chatgpt.everything()),
        chatgpt.conversation(*chatgpt.dialogue(), id="other"),
    ],
    lambda id: chatgpt.conversation(*chatgpt.dialogue(), id=id),
)
CLAUDE_AI = Export(
    claude_ai.CLAUDE,
    [
        claude_ai.conversation(*claude_ai.everything()),
        claude_ai.conversation(*claude_ai.dialogue(), id="other"),
        claude_ai.project(),
    ],
    lambda id: claude_ai.conversation(*claude_ai.dialogue(), id=id),
)
each_export = pytest.mark.parametrize("export", [CHATGPT, CLAUDE_AI], ids=["chatgpt", "claude-ai"])


class TestChatGpt(OwnImporterContract):
    importer = CHATGPT.importer
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [
            chatgpt.write(folder, *CHATGPT.every),
            chatgpt.write(folder, CHATGPT.dialogue("third"), name="conversations-001.json"),
        ]


class TestClaudeAi(OwnImporterContract):
    importer = CLAUDE_AI.importer
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        *conversations, project = CLAUDE_AI.every
        return [
            claude_ai.write(folder, *conversations),
            claude_ai.write(folder, project, name="projects.json"),
        ]


def read_bytes(export: Export, folder: Path, data: bytes) -> tuple[list[Any], Any]:
    path = folder / "conversations.json"
    path.write_bytes(data)
    export.importer.recognises(as_source(path))
    return read(export.importer, path)


@each_export
@given(data=st.data())
def test_an_export_with_other_values_is_never_fatal_and_always_counted(export: Export, data: st.DataObject) -> None:
    document = data.draw(spoiled(export.every))
    with TemporaryDirectory() as folder:
        read_bytes(export, Path(folder), json.dumps(document).encode())


@each_export
@given(at=st.integers(0, 8000), junk=st.binary(max_size=4))
def test_bytes_put_in_anywhere_are_never_fatal(export: Export, at: int, junk: bytes) -> None:
    data = orjson.dumps(export.every)
    with TemporaryDirectory() as folder:
        read_bytes(export, Path(folder), data[:at] + junk + data[at:])


@each_export
@pytest.mark.parametrize("share", range(0, 100, 9))
def test_an_export_cut_anywhere_is_taken_as_far_as_it_goes(export: Export, tmp_path: Path, share: int) -> None:
    data = orjson.dumps(export.every)
    read_bytes(export, tmp_path, data[: len(data) * share // 100])


@each_export
def test_a_damaged_conversation_harms_no_others_and_its_bytes_are_kept(export: Export, tmp_path: Path) -> None:
    told = [export.dialogue(f"c-{k}") for k in range(4)]
    data = orjson.dumps(told).replace(b'"A test."', b'"A "test."', 2).replace(b'"A "test."', b'"A test."', 1)
    found, report = read_bytes(export, tmp_path, data)
    assert [each.session.id for each in found] == ["c-0", "c-2", "c-3"]
    assert report.damaged >= 1
    assert b'"c-1"' in b"".join(each.raw or b"" for each in found)


def test_parents_that_lead_in_a_circle_are_not_followed_for_ever(tmp_path: Path) -> None:
    told = CHATGPT.dialogue("c")
    told["mapping"][chatgpt.id_of("r")]["parent"] = chatgpt.id_of("a2")
    (found,), _ = read_bytes(CHATGPT, tmp_path, orjson.dumps([told]))
    assert len(found.turns) == 2
