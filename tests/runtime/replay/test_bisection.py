"""The first bad turn by halving, compared with a search that checks every turn."""

from __future__ import annotations

import asyncio
import os
from math import ceil, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.errors import CheckFailed, NotApplicable
from weft.runtime.thread_replay import (
    MAX_QUOTED_CHARACTERS,
    BisectResult,
    Check,
    Checked,
    CheckVerdict,
    answer_verdict,
    bisect,
    command_check,
    exit_verdict,
    model_check,
)

GOOD, BAD, SKIP = CheckVerdict.GOOD, CheckVerdict.BAD, CheckVerdict.SKIP


def search(verdicts: list[CheckVerdict]) -> BisectResult:
    async def check(place: int) -> Checked:
        return verdicts[place], None

    return asyncio.run(bisect([str(place) for place in range(len(verdicts))], check))


def judged(check: Check, place: int) -> Checked:
    async def main() -> Checked:
        return await check(place)

    return asyncio.run(main())


def naive(verdicts: list[CheckVerdict]) -> list[str]:
    """Where the first bad one can be: from behind the last good one before it to the first that is seen to be bad."""
    bad = verdicts.index(BAD)
    good = max(place for place in range(bad) if verdicts[place] is GOOD)
    return [str(place) for place in range(good + 1, bad + 1)]


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_halving_finds_what_a_linear_search_finds(good: int, bad: int, data: st.DataObject) -> None:
    verdicts = [GOOD] * good + [BAD] * bad
    for place in data.draw(st.sets(st.integers(0, good + bad - 1))):
        if 0 < place < good + bad - 1:
            verdicts[place] = SKIP
    result = search(verdicts)
    assert list(result.candidates) == naive(verdicts)
    assert result.first_bad == (result.candidates[0] if len(result.candidates) == 1 else None)
    assert len({step.place for step in result.steps}) == len(result.steps)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_without_skips_the_number_of_checks_is_logarithmic(good: int, bad: int) -> None:
    result = search([GOOD] * good + [BAD] * bad)
    assert result.first_bad == str(good)
    assert result.last_good == str(good - 1)
    assert len(result.steps) <= 2 + ceil(log2(good + bad))


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([BAD, BAD], "the first turn, 0, is already bad"),
        ([GOOD, GOOD], "the last turn, 1, is still good"),
        ([SKIP, BAD], "cannot say whether the first turn, 0, is good"),
        ([GOOD, SKIP], "cannot say whether the last turn, 1, is bad"),
        ([BAD], "only one turn"),
    ],
)
def test_ends_that_are_not_good_and_bad_are_told(verdicts: list[CheckVerdict], words: str) -> None:
    with pytest.raises(NotApplicable, match=words):
        search(verdicts)


def test_exit_codes_mean_what_they_mean_to_git() -> None:
    assert [exit_verdict(code) for code in (0, 1, 2, 124, 125, 126, 127)] == [GOOD, BAD, BAD, BAD, SKIP, BAD, BAD]
    for code in (128, 130, 255, -9):
        with pytest.raises(CheckFailed):
            exit_verdict(code)


def test_a_command_is_given_the_thread_in_the_users_folder_and_shell(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("3")

    def check(command: str, seconds: float = 30) -> Checked:
        check = command_check(
            command, lambda place: b"x" * place, environment=os.environ, folder=tmp_path, seconds=seconds
        )
        return judged(check, 3)

    assert check('test "$(wc -c)" -le "$(cat limit)"') == (GOOD, "exit code 0")
    assert check("exit 125")[0] is SKIP
    assert check("grep -q y")[0] is BAD
    verdict, remark = check("no-such-command")
    assert (verdict, str(remark)[:15], "no-such-command" in str(remark)) == (BAD, "exit code 127: ", True)
    with pytest.raises(CheckFailed, match=r"ended with 200, which says nothing: no luck"):
        check("echo no luck >&2; exit 200")
    with pytest.raises(CheckFailed, match=r"signal 15 ended the check"):
        check("kill $$")
    with pytest.raises(CheckFailed, match=r"took longer than 0.05 s"):
        check("exec sleep 60", 0.05)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("YES", GOOD), (" yes.\n", GOOD), ("No", BAD), ("no.", BAD),
        ("UNCERTAIN", SKIP), ("", SKIP), ("Yes, but", SKIP), ("yes or no", SKIP), ("no!", SKIP),
    ],
)  # fmt: skip
def test_a_models_answer_counts_only_as_one_word(answer: str, verdict: CheckVerdict) -> None:
    assert answer_verdict(answer) is verdict


def test_a_model_is_shown_the_question_and_the_end_of_a_long_thread() -> None:
    asked: list[tuple[str, str]] = []

    async def ask(prompt: str, thread: str) -> str:
        asked.append((prompt, thread))
        return "NO"

    check = model_check("Is {it} done?", lambda place: b"a" * (MAX_QUOTED_CHARACTERS * place) + b"end", ask)
    assert judged(check, 0) == (BAD, "NO")
    judged(check, 1)
    assert "Is {it} done?" in asked[0][0]
    assert asked[0][1] == "end"
    assert asked[1][1].startswith("[the first 3 characters are left out]")
    assert asked[1][1].endswith("aend")
