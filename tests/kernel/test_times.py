"""Times have one spelling, and clocks that tests hold in hand."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.clock import Clock, FixedClock, SystemClock, is_iso, iso_from_ms, ms_from_iso, system_random
from weft.kernel.errors import InvalidInput

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

moments = st.integers(FIRST, LAST)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-1000, "1969-12-31T23:59:59.000Z"),
        (1_794_707_892_123, "2026-11-15T01:58:12.123Z"),
        (951_782_400_007, "2000-02-29T00:00:00.007Z"),
        (FIRST, "0001-01-01T00:00:00.000Z"),
        (LAST, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_moment_has_one_spelling(ms: int, text: str) -> None:
    assert iso_from_ms(ms) == text
    assert ms_from_iso(text) == ms
    assert is_iso(text)


@given(moments)
def test_a_moment_comes_back_from_its_spelling(ms: int) -> None:
    text = iso_from_ms(ms)
    assert ms_from_iso(text) == ms
    assert datetime.fromisoformat(text) == EPOCH + timedelta(milliseconds=ms)


@given(moments, moments)
def test_spellings_sort_like_their_moments(left: int, right: int) -> None:
    assert (iso_from_ms(left) < iso_from_ms(right)) == (left < right)


@pytest.mark.parametrize("ms", [FIRST - 1, LAST + 1, 10**30, pytest.param(-(10**5000), id="huge")])
def test_a_moment_outside_the_years_is_refused(ms: int) -> None:
    with pytest.raises(InvalidInput, match="0001 to 9999"):
        iso_from_ms(ms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-15",
        "2026-11-15T01:58:12Z",
        "2026-11-15T01:58:12.12Z",
        "2026-11-15T01:58:12.1234Z",
        "2026-11-15T01:58:12.123",
        "2026-11-15T01:58:12.123z",
        "2026-11-15t01:58:12.123Z",
        "2026-11-15 01:58:12.123Z",
        "2026-11-15T01:58:12,123Z",
        "2026-11-15T01:58:12.123+00:00",
        "2026-11-15T01:58:12.123Z\n",
        " 2026-11-15T01:58:12.123Z",
        "20261115T015812.123Z",
        "2026-11-15T01:58:12.12３Z",
        "-026-11-15T01:58:12.123Z",
        "0000-11-15T01:58:12.123Z",
        "2026-00-15T01:58:12.123Z",
        "2026-13-15T01:58:12.123Z",
        "2026-02-29T01:58:12.123Z",
        "2026-11-15T24:00:00.000Z",
        "2026-11-15T23:60:00.000Z",
        "2026-11-15T23:59:60.000Z",
    ],
)
def test_another_spelling_is_refused(text: str) -> None:
    assert not is_iso(text)
    with pytest.raises(InvalidInput, match="is not a time"):
        ms_from_iso(text)


@given(st.text(st.sampled_from("0123456789-T:.Z"), min_size=20, max_size=28))
def test_what_is_a_time_is_spelled_again_the_same(text: str) -> None:
    if is_iso(text):
        assert iso_from_ms(ms_from_iso(text)) == text


def test_a_fixed_clock_moves_only_when_told() -> None:
    clock = FixedClock(1000)
    assert (clock.now_ms(), clock.monotonic()) == (1000, 0.0)
    clock.tick(250)
    assert (clock.now_ms(), clock.monotonic()) == (1250, 0.25)
    clock.sleep(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (2750, 1.75)
    clock.tick()
    assert clock.now_ms() == 2751


def test_setting_a_fixed_clock_back_passes_no_time() -> None:
    clock = FixedClock(1000)
    clock.tick(10)
    clock.set(5)
    assert (clock.now_ms(), clock.monotonic()) == (5, 0.01)


def test_sleeping_less_than_a_millisecond_still_passes_time() -> None:
    clock = FixedClock()
    for _ in range(10):
        clock.sleep(0.0001)
    assert (clock.now_ms(), clock.monotonic()) == (1, 0.001)


def test_the_system_has_a_clock_and_randomness() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() > before
    assert iso_from_ms(clock.now_ms()) > "2026"
    assert len(system_random(10)) == 10
    assert system_random(10) != system_random(10)
