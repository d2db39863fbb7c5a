"""What is counted of a foreign input, and what is refused."""

import pytest
from msgspec.structs import replace

from weft.kernel import foreign_input
from weft.kernel.clock import FixedClock
from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadBudget, ReadLimits, check_json, json_values

LIMITS = ReadLimits(
    bytes=1000,
    free_bytes=100,
    ratio=10,
    held_bytes=50,
    values=8,
    entries=3,
    seconds=5,
    bytes_a_second=10,
    advice="mend it",
)


def test_what_comes_out_is_measured_against_what_was_read() -> None:
    budget = ReadBudget(LIMITS)
    budget.take_bytes(100)
    budget.note_read(5)
    budget.take_bytes(50)
    with pytest.raises(LimitExceeded, match="5 bytes unpack to 151 or more: 151, where 150 is the most") as refused:
        budget.take_bytes(1)
    assert (refused.value.found, refused.value.limit, refused.value.hint) == (151, 150, "mend it")


def test_no_input_gives_more_bytes_than_the_most() -> None:
    budget = ReadBudget(LIMITS)
    budget.note_read(10**9)
    budget.take_bytes(1000)
    with pytest.raises(LimitExceeded, match="where 1000 is the most"):
        budget.take_bytes(1)


def test_things_and_sizes_have_their_most() -> None:
    budget = ReadBudget(LIMITS)
    budget.take_entries(3)
    with pytest.raises(LimitExceeded, match="the things in it: 4, where 3"):
        budget.take_entries()
    budget.check_held(50)
    with pytest.raises(LimitExceeded, match="a line: 51, where 50"):
        budget.check_held(51, "a line")


def test_time_is_that_of_the_clock_and_grows_with_what_is_read() -> None:
    clock = FixedClock()
    budget = ReadBudget(LIMITS, clock.monotonic)
    clock.sleep(5)
    budget.check_time()
    clock.sleep(1)
    with pytest.raises(LimitExceeded, match="seconds"):
        budget.check_time()
    budget.note_read(10)
    budget.check_time()
    ReadBudget(LIMITS).check_time()  # without a clock it is not limited


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b"[1,2,3,4,5,6,7]", 8),
        (b'["a,b,c,d,e,f,g,h,i,j"]', 2),
        (b'{"a":"[[[[[[[[[[","b":2}', 3),
        (b'["\\"",",,,,,,,,,,,,,,"]', 3),
        (b'["an end that is missing ,,,,,,,,,', 2),
    ],
)
@pytest.mark.parametrize("few", [0, 1000])
def test_values_are_counted_outside_of_strings(
    text: bytes, count: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same way where strings are few and where they are many."""
    monkeypatch.setattr(foreign_input, "FEW_QUOTES", few)
    assert json_values(text, 8) == count
    check_json(text, LIMITS)


def test_a_json_text_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(LimitExceeded, match="the values of a JSON text: 11, where 8"):
        check_json(b"[[],[],[],[],[]]", LIMITS)
    with pytest.raises(LimitExceeded, match="a JSON text in bytes: 60, where 50"):
        check_json(b'"' + b"x" * 58 + b'"', LIMITS)
    check_json(b'"' + b"x" * 58 + b'"', replace(LIMITS, held_bytes=60))
