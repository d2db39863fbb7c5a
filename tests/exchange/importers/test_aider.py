"""aider: how its Markdown becomes sessions and turns, and what makes it hard."""

from __future__ import annotations

from pathlib import Path

import weft
from tests.exchange.fixtures.aider.histories import (
    AIDER,
    BANNER,
    COST,
    NAME,
    STARTED,
    answer,
    dialogue,
    everything,
    header,
    output,
    prompt,
    write,
)
from tests.exchange.reading import read, read_one, said, shape, texts_of
from weft.exchange.importers.aider import is_command
from weft.exchange.importers.port import NativeTurn, Tokens
from weft.exchange.importers.testing import as_source
from weft.exchange.importing.run import ImportRun
from weft.kernel.clock import FixedClock
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, TextPart


def turns_of(folder: Path, text: str) -> list[NativeTurn]:
    return read_one(AIDER, write(folder / "shop", header() + text)).turns


def test_a_session_begins_where_the_chat_was_started(tmp_path: Path) -> None:
    found = read_one(AIDER, write(tmp_path / "shop", dialogue()))
    assert (found.session.id, found.session.version) == (f"shop/{STARTED}", "0.86.2")
    assert found.session.workspace == str(tmp_path / "shop")
    assert found.session.metadata == {"started": STARTED, "repository": ".git"}
    assert shape(found.turns) == [(f"shop/{STARTED}#0", None), (f"shop/{STARTED}#1", 0)]
    assert [each.role for each in said(found.turns[0])] == [
        MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT, MessageRole.SYSTEM,
    ]  # fmt: skip
    assert texts_of(found.turns[1]) == ["Thanks.", "Welcome."]
    assert found.turns[0].config == {"model": "gpt-5", "edit_format": "diff"}


def test_a_prompt_of_several_lines_is_one(tmp_path: Path) -> None:
    assert texts_of(turns_of(tmp_path, prompt("What is this?", "", "Tell me."))[0]) == ["What is this?\n\nTell me."]


def test_local_times_stay_words(tmp_path: Path) -> None:
    (turn,) = turns_of(tmp_path, prompt("Hi") + answer("Hello"))
    assert (turn.started, turn.literal_time) == (None, STARTED)


class TestAnswersThatLookLikeAider:
    def test_headings_of_four_and_quotes_stay_with_the_answer(self, tmp_path: Path) -> None:
        """Aider ends its own lines with two spaces."""
        (turn,) = turns_of(
            tmp_path, prompt("Why?") + answer("So:\n\n#### Reasons\n\n> A quote.\n\n#### More\n\nEnd.") + COST
        )
        assert texts_of(turn)[1] == "So:\n\n#### Reasons\n\n> A quote.\n\n#### More\n\nEnd."

    def test_where_an_editor_took_the_spaces_every_mark_counts(self, tmp_path: Path) -> None:
        text = "\n#### Why?\n\nSo.\n\n> Tokens: 10 sent, 2 received.\n\n#### And?\n\nOh.\n"
        turns = turns_of(tmp_path, text)
        assert [texts_of(turn) for turn in turns] == [["Why?", "So.", "Tokens: 10 sent, 2 received."], ["And?", "Oh."]]

    def test_an_output_of_several_lines_is_marked_on_its_first_alone(self, tmp_path: Path) -> None:
        text = (
            "> aider --message # Do\n\n#### not a prompt\n\nthe rest  \n> Added a.py to the chat  \n"
            + prompt("Go.")
            + answer("Gone.")
        )
        (turn,) = turns_of(tmp_path, text)
        assert texts_of(turn) == [
            "aider --message # Do\n\n#### not a prompt\n\nthe rest\nAdded a.py to the chat",
            "Go.",
            "Gone.",
        ]

    def test_what_is_printed_before_the_first_prompt_is_no_answer(self, tmp_path: Path) -> None:
        (turn,) = turns_of(tmp_path, "Something odd\n" + prompt("Go.") + answer("Gone."))
        assert [each.role for each in said(turn)] == [MessageRole.SYSTEM, MessageRole.USER, MessageRole.ASSISTANT]


class TestCommands:
    def test_they_belong_to_the_prompt_after_them(self, tmp_path: Path) -> None:
        text = (
            prompt("One")
            + answer("1")
            + prompt("/add a.py")
            + "\n"
            + output("Added a.py to the chat")
            + prompt("Two")
            + answer("2")
        )
        turns = turns_of(tmp_path, text)
        assert [texts_of(turn) for turn in turns] == [["One", "1"], ["/add a.py", "Added a.py to the chat", "Two", "2"]]
        assert said(turns[1])[1].files == (FileNote(kind=FileKind.ATTACHED, path="a.py"),)

    def test_one_that_the_model_answers_is_a_turn(self, tmp_path: Path) -> None:
        turns = turns_of(
            tmp_path, prompt("One") + answer("1") + prompt("/lint") + "\n" + output("Errors") + answer("Mended.")
        )
        assert [texts_of(turn) for turn in turns] == [["One", "1"], ["/lint", "Errors", "Mended."]]

    def test_those_at_the_end_are_a_turn_of_their_own(self, tmp_path: Path) -> None:
        assert [texts_of(turn) for turn in turns_of(tmp_path, prompt("One") + answer("1") + prompt("/quit"))] == [
            ["One", "1"],
            ["/quit"],
        ]

    def test_what_is_asked_by_a_command_is_a_prompt(self) -> None:
        assert [is_command(text) for text in ("/ask why?", "/ask", "/add a", "!ls", "why /not")] == [
            False,
            True,
            True,
            True,
            False,
        ]


class TestWhatAiderTells:
    def test_tokens_as_they_were_printed(self, tmp_path: Path) -> None:
        (turn,) = turns_of(tmp_path, prompt("Hi") + answer("Hello") + COST)
        assert said(turn)[1].tokens == Tokens(input=1400, output=104, cached=1000)
        assert said(turn)[1].metadata == {"cost": 0.0098, "rounded": True}

    def test_older_versions_tell_them_before_the_answer(self, tmp_path: Path) -> None:
        text = (
            BANNER
            + prompt("Hi")
            + output("34012 prompt tokens, 113 completion tokens, $0.171755 cost")
            + answer("Hello")
        )
        text += output(
            "Add these files to the chat? yes", "28431 prompt tokens, 487 completion tokens, $0.149460 cost"
        ) + answer("More")
        (turn,) = turns_of(tmp_path, text)
        told = [each.tokens for each in said(turn) if each.role is MessageRole.ASSISTANT]
        assert told == [Tokens(input=34012, output=113), Tokens(input=28431, output=487)]

    def test_files_commits_and_models(self, tmp_path: Path) -> None:
        (_, second), _ = read(AIDER, write(tmp_path / "shop", everything()))
        turn = second.turns[0]
        changed = next(each for each in said(turn) if each.role is MessageRole.ASSISTANT)
        assert changed.files == (FileNote(kind=FileKind.WRITTEN, path="shop.py"),)
        assert changed.model == "gpt-5"
        assert turn.metadata == {"commits": [{"commit": "abc1234", "message": "feat: Change it"}]}

    def test_an_answer_that_was_stopped(self, tmp_path: Path) -> None:
        assert [
            turn.interrupted for turn in turns_of(tmp_path, prompt("Hi") + answer("He") + output("^C again to exit"))
        ] == [True]


class TestInputHistory:
    INPUTS = (
        "\n# 2026-01-01 00:00:00.000001\n+Hi\n"
        "\n# 2026-01-02 03:05:00.000002\n+Hi\n"
        "\n# 2026-01-02 03:06:00.000003\n+Two\n+lines\n"
    )

    def test_it_tells_when_prompts_were_typed(self, tmp_path: Path) -> None:
        write(tmp_path / "shop", self.INPUTS, ".aider.input.history")
        turns = turns_of(tmp_path, prompt("Hi") + answer("Hello") + prompt("Two", "lines") + prompt("Unknown"))
        assert [turn.literal_time for turn in turns] == [
            "2026-01-02 03:05:00.000002",
            "2026-01-02 03:06:00.000003",
            STARTED,
        ]

    def test_it_is_part_of_the_chat_history_beside_it(self, tmp_path: Path) -> None:
        path = write(tmp_path / "shop", self.INPUTS, ".aider.input.history")
        assert not AIDER.is_part(as_source(path))
        write(tmp_path / "shop", dialogue())
        assert AIDER.is_part(as_source(path))

    def test_alone_it_gives_the_prompts(self, tmp_path: Path) -> None:
        path = write(tmp_path / "shop", self.INPUTS, ".aider.input.history")
        assert AIDER.recognises(as_source(path))
        found = read_one(AIDER, path)
        assert found.session.id == "shop/inputs"
        assert [texts_of(turn) for turn in found.turns] == [["Hi"], ["Hi"], ["Two\nlines"]]


class TestLlmHistory:
    LOG = (
        "TO LLM 2026-01-02T03:05:00\n-------\nSYSTEM Be brief.\nSYSTEM \nSYSTEM Always.\n-------\nUSER Hi\n"
        "-------\nUSER Look:\nUSER x\n"
        "LLM RESPONSE 2026-01-02T03:05:09\nASSISTANT Seen.\nASSISTANT \nASSISTANT Done.\n"
        "TO LLM 2026-01-02T03:06:00\n-------\nUSER Again\n"
    )

    def test_each_request_is_a_turn_with_what_it_asks_last(self, tmp_path: Path) -> None:
        path = write(tmp_path / "shop", self.LOG, ".aider.llm.history")
        assert AIDER.recognises(as_source(path))
        (found,), report = read(AIDER, path)
        assert report.mapped == {"request": 2, "response": 1}
        assert [texts_of(turn) for turn in found.turns] == [["Look:\nx", "Seen.\n\nDone."], ["Again"]]
        assert said(found.turns[0])[0].metadata == {"context_messages": 2}
        assert [turn.closed for turn in found.turns] == [True, False]
        assert said(found.turns[0])[0].source is MessageSource.EVENT


def test_every_session_of_a_file_keeps_its_own_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "shop", everything())
    with weft.open(tmp_path / "ledger.db") as ledger:
        ImportRun(ledger, [AIDER], FixedClock(10**13)).run([tmp_path / "shop"])
        labels = sorted(session.label for session in ledger.sessions())
        assert labels == [f"shop/{STARTED}", "shop/2026-01-03 00:00:00"]
        first, second = (b"".join(part.data for part in ledger.imports.kept_sources(label)) for label in labels)
        assert first + second == path.read_bytes()
        assert second.startswith(b"# aider chat started at 2026-01-03")
        with path.open("a") as file:
            file.write(prompt("One more.") + answer("Yes."))
        ImportRun(ledger, [AIDER], FixedClock(10**13)).run([tmp_path / "shop"])
        assert b"".join(part.data for part in ledger.imports.kept_sources(str(path))) == path.read_bytes()
        assert [message.text for message in ledger.thread(labels[1]).messages][-1] == "Yes."
        assert list(ledger.verify()) == []


def test_two_sessions_of_one_second_are_two(tmp_path: Path) -> None:
    found, _ = read(AIDER, write(tmp_path / "shop", (header() + prompt("Hi") + answer("Hello")) * 2))
    assert [each.session.id for each in found] == [f"shop/{STARTED}", f"shop/{STARTED}~2"]


def test_a_session_without_prompts_has_no_turns(tmp_path: Path) -> None:
    found = read_one(AIDER, write(tmp_path / "shop", header() + BANNER))
    assert (found.turns, found.session.version) == ([], "0.86.2")


def test_only_the_last_turn_of_the_last_session_is_open(tmp_path: Path) -> None:
    found, _ = read(AIDER, write(tmp_path / "shop", everything()))
    assert [[turn.closed for turn in each.turns] for each in found] == [[True, True], [True, True, False]]


def test_other_markdown_is_not_its_own(tmp_path: Path) -> None:
    for text in ("# aider\n", "#### Hi  \n> there  \n", "# aider chats\n\n#### x  \n"):
        assert not AIDER.recognises(as_source(write(tmp_path, text, "README.md")))


def test_a_history_may_lie_at_home(tmp_path: Path) -> None:
    assert [place.path for place in AIDER.places(tmp_path, {})] == [tmp_path / NAME]
    assert [place.path for place in AIDER.places(tmp_path, {"AIDER_CHAT_HISTORY_FILE": "/h.md"})] == [Path("/h.md")]


def test_bytes_that_are_no_utf8_stay_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "shop", header() + prompt("Hi") + answer("A test."))
    path.write_bytes(path.read_bytes().replace(b"A test.", b"A \xff test."))
    assert said(read_one(AIDER, path).turns[0])[1].parts == (TextPart("A \udcff test."),)
