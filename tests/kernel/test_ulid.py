"""ULIDs sort in the order they were minted, whatever clock and randomness do."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.clock import (
    ALPHABET,
    FixedClock,
    SystemClock,
    UlidSource,
    decode,
    encode,
    from_digest,
    is_ulid,
    offset,
    system_random,
)
from weft.kernel.errors import InvalidInput

END = 2**128
YEAR_10889 = 2**48 - 1

numbers = st.integers(0, END - 1)
clocks = st.lists(st.integers(-5, YEAR_10889 - 100) | st.integers(1000, 1004), min_size=1, max_size=60)
randomness = st.sampled_from([b"\x00", b"\xff", b"\x7f"]).map(lambda byte: lambda size: byte * size) | st.just(
    system_random
)


def zeros(size: int) -> bytes:
    return bytes(size)


def ones(size: int) -> bytes:
    return b"\xff" * size


@given(numbers)
def test_a_number_comes_back_from_its_letters(value: int) -> None:
    letters = encode(value)
    assert is_ulid(letters)
    assert decode(letters) == value


@given(numbers, numbers)
def test_letters_sort_like_their_numbers(left: int, right: int) -> None:
    assert (encode(left) < encode(right)) == (left < right)


def test_the_letters_are_those_of_the_specification() -> None:
    assert encode(0) == "0" * 26
    assert encode(END - 1) == "7" + "Z" * 25
    assert encode(int(ALPHABET.index("J"))) == "0" * 25 + "J"
    assert decode("01ARYZ6S41TSV4RRFFQ69G5FAV") >> 80 == 1469918176385


@given(clocks, randomness)
def test_ulids_sort_as_minted_under_any_clock(times: list[int], random_bytes: Callable[[int], bytes]) -> None:
    clock = FixedClock()
    source = UlidSource(clock.now_ms, random_bytes)
    minted = []
    for now in times:
        clock.set(now)
        minted += [source.mint(), source.mint()]
    assert minted == sorted(set(minted))
    assert all(map(is_ulid, minted))


@given(clocks, st.lists(st.booleans(), min_size=60, max_size=60), randomness)
def test_skipping_keeps_the_order(times: list[int], skips: list[bool], random_bytes: Callable[[int], bytes]) -> None:
    clock = FixedClock()
    source = UlidSource(clock.now_ms, random_bytes)
    minted = []
    for now, skips_now in zip(times, skips, strict=False):
        clock.set(now)
        if skips_now:
            source.skip()
        minted.append(source.mint())
    assert minted == sorted(set(minted))


def test_a_ulid_names_the_millisecond_of_its_minting() -> None:
    clock = FixedClock(1_794_000_000_123)
    assert decode(UlidSource(clock.now_ms, system_random).mint()) >> 80 == 1_794_000_000_123


def test_a_clock_that_stands_still_counts_up() -> None:
    source = UlidSource(FixedClock(7).now_ms, zeros)
    first, second = decode(source.mint()), decode(source.mint())
    assert (first, second) == (7 << 80, (7 << 80) + 1)


def test_a_clock_that_goes_back_does_not_take_the_ulids_back() -> None:
    clock = FixedClock(1000)
    source = UlidSource(clock.now_ms, zeros)
    first = source.mint()
    clock.set(5)
    assert decode(source.mint()) == decode(first) + 1
    clock.set(1001)
    assert decode(source.mint()) == 1001 << 80


def test_randomness_that_runs_out_moves_to_the_next_millisecond() -> None:
    source = UlidSource(FixedClock(7).now_ms, ones)
    assert decode(source.mint()) >> 80 == 7
    assert decode(source.mint()) == 8 << 80


def test_the_room_after_a_ulid_is_never_minted() -> None:
    source = UlidSource(FixedClock(7).now_ms, zeros)
    first = source.mint(room=100)
    assert source.mint() == offset(first, 100)


@given(numbers, st.integers(0, 1000))
def test_an_offset_counts_on_from_a_ulid_and_wraps_at_the_last(value: int, by: int) -> None:
    assert decode(offset(encode(value), by)) == (value + by) % END


def test_a_clock_before_1970_still_gives_random_ulids() -> None:
    assert decode(UlidSource(FixedClock(-1000).now_ms, ones).mint()) == (1 << 80) - 1


def test_two_sources_that_collide_part_after_a_skip() -> None:
    clock = FixedClock(7)
    left, right = UlidSource(clock.now_ms, zeros), UlidSource(clock.now_ms, zeros)
    assert left.mint() == right.mint()
    right.skip()
    assert left.mint() < right.mint()


def test_a_clock_beyond_the_last_millisecond_is_refused_and_changes_nothing() -> None:
    clock = FixedClock(YEAR_10889)
    source = UlidSource(clock.now_ms, zeros)
    last = source.mint()
    clock.tick()
    for refused in (source.mint, source.skip):
        with pytest.raises(InvalidInput):
            refused()
    clock.set(0)
    assert decode(source.mint()) == decode(last) + 1


def test_threads_that_share_a_source_never_get_the_same_ulid() -> None:
    clock = SystemClock()

    def slow_zeros(size: int) -> bytes:
        clock.sleep(0.0001)
        return bytes(size)

    source = UlidSource(clock.now_ms, slow_zeros)

    def mint_many(_: int) -> list[str]:
        return [source.mint() for _ in range(2000)]

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(mint_many, range(8)))
    assert all(run == sorted(run) for run in runs)
    assert len({ulid for run in runs for ulid in run}) == 8 * 2000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "0" * 25 + "i",
        "0" * 25 + "a",
        *("0" * 25 + letter for letter in "ILOU_-+ \n"),
        "0" * 25 + "０",
        "0" * 26 + "\n",
    ],
)
def test_other_text_is_not_a_ulid(text: str) -> None:
    assert not is_ulid(text)
    with pytest.raises(InvalidInput, match="not a ULID"):
        decode(text)


@pytest.mark.parametrize("value", [-1, END])
def test_a_number_of_another_size_has_no_letters(value: int) -> None:
    with pytest.raises(InvalidInput):
        encode(value)


@given(st.binary())
def test_a_digest_gives_its_first_128_bits(text: bytes) -> None:
    digest = sha256(text).digest()
    assert decode(from_digest(digest)) == int(digest.hex()[:32], 16)
    assert from_digest(digest) == from_digest(digest[:16])


def test_a_short_digest_is_refused() -> None:
    with pytest.raises(InvalidInput, match="15 bytes"):
        from_digest(bytes(15))
