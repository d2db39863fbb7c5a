"""Usage: the provider's own numbers, each response once, whatever forks, copies and versions there are."""

import tomllib
from datetime import date, timedelta, timezone
from itertools import permutations
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import weft
from tests.ledger.conftest import NOON
from tests.ledger.histories import PROPERTY_SCALE, copy_in_memory, grow
from tests.ledger.imported import ORIGIN, native_turn, take
from tests.sizes import sized
from weft.kernel.clock import FixedClock
from weft.kernel.enums import LinkReason, MessageRole
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api.ledger import Ledger
from weft.ledger.imports.imported_turns import NativeLink, NativeMessage, NativeTurn, Tokens
from weft.ledger.model import TextPart
from weft.ledger.reports.prices import FREE, PRICED, KindCosts, PriceTable, Spending, prices_from, shipped_prices
from weft.ledger.reports.responses import STANDING, CountedResponse, ThreadReach, reported
from weft.ledger.reports.usage import UsageReport, UsageSurvey

HOUR, DAY = 3_600_000, 86_400_000
PRICES = prices_from(
    {
        "as_of": "2026-11-01",
        "models": {
            "model-1": {"input": 3_000_000, "output": 15_000_000, "cached": 300_000, "cache_write": 3_750_000},
            "half-known": {"input": 1_000_000},
            "fine": {"input": 1, "output": 1},
        },
    },
    "test",
)


def spent(input: int = 0, output: int = 0, cached: int = 0, cache_write: int = 0) -> dict[str, int]:
    return {
        "input_tokens": input,
        "output_tokens": output,
        "cached_input_tokens": cached,
        "cache_write_tokens": cache_write,
    }


def response(native: str | None, model: str | None = "model-1", at: int | None = None, **tokens: int) -> NativeMessage:
    return NativeMessage(
        role=MessageRole.ASSISTANT,
        parts=(TextPart(f"said by {native}"),),
        native=native,
        model=model,
        at=at,
        tokens=Tokens(**tokens),
    )


def turn_of(key: str, *responses: NativeMessage, **more: Any) -> NativeTurn:
    """A prompt with any number of responses."""
    prompt = NativeMessage(role=MessageRole.USER, parts=(TextPart(f"ask {key}"),), native=key, at=more.get("started"))
    said = [key, *(message.native for message in responses)]
    return NativeTurn(key=key, records=(orjson.dumps(said),), items=(prompt, *responses), **more)


def keys(report: UsageReport) -> dict[str, int]:
    return {row.key: row.total for row in report.rows}


def parts(sum: Spending) -> tuple[int, ...]:
    return sum.input, sum.output, sum.cached, sum.cache_write, sum.total


def test_an_empty_ledger_has_spent_nothing(ledger: Ledger) -> None:
    report = ledger.usage.report()
    assert (report.rows, report.models, report.unpriced, report.naive_factor) == ((), (), (), None)
    assert (report.total.total, report.total.cost, report.abandoned.total) == (0, 0, 0)
    assert ledger.usage.abandoned().rows == ()


def test_the_parts_are_disjoint_and_reasoning_lies_inside_output(ledger: Ledger) -> None:
    grow(ledger, "main", "a", model="model-1", usage={**spent(10, 20, 30, 40), "reasoning_tokens": 15})
    total = ledger.usage.report(prices=PRICES).total
    assert (*parts(total), total.reasoning, total.responses) == (10, 20, 30, 40, 100, 15, 1)
    assert total.cost == 10 * 3 + 20 * 15 + 30 * 0.3 + 40 * 3.75


@pytest.mark.parametrize("forks", [0, 1, 7])
def test_forks_never_change_the_sum(ledger: Ledger, forks: int) -> None:
    turns = grow(ledger, "main", *"abcd", usage=spent(10, 5))
    for i in range(forks):
        ledger.fork(turns[i % 4], label=f"fork-{i}")
    report = ledger.usage.report(by="session")
    assert parts(report.total) == (40, 20, 0, 0, 60)
    assert keys(report) == {"main": 60}
    naive = 60 + sum(15 * (i % 4 + 1) for i in range(forks))
    assert (report.naive.total, report.naive_factor) == (naive, round(naive / 60, 4))


def test_a_fork_inside_a_turn_counts_what_it_contains(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.message("q")
        writer.request("m")
        writer.response("one", usage=spent(1))
        first = ledger.events(writer.id)[-1].id
        writer.request("m")
        writer.response("two", usage=spent(10))
        writer.finish()
    ledger.fork(first, label="cut")
    report = ledger.usage.report()
    assert (report.total.total, report.naive.total) == (11, 12)
    assert ledger.usage.branch("cut").thread.total == 1
    assert ledger.usage.branch("main").marginal.total == 10
    ledger.labels.delete("main")
    assert ledger.usage.report().abandoned.total == 10


def test_a_session_that_was_copied_counts_once(ledger: Ledger) -> None:
    turns = [native_turn("t1", started=NOON, end=1), native_turn("t2", parent=0, started=NOON, offset=1, end=2)]
    take(ledger, "one", *turns)
    take(ledger, "two", *turns, file="b.jsonl")
    take(ledger, "one", *turns)
    report = ledger.usage.report(by="origin")
    assert (keys(report), report.total.responses) == ({ORIGIN: 30}, 2)
    assert (report.naive.total, report.naive_factor) == (60, 2.0)


def test_a_version_that_was_superseded_adds_nothing_but_what_it_knows_of_the_same_response(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", "short", tokens=Tokens(input=100), end=1))
    take(ledger, "s", native_turn("t1", "longer", tokens=Tokens(input=7, output=3), end=1), reread=True)
    report = ledger.usage.report()
    assert (report.total.input, report.total.output, report.total.responses) == (100, 3, 1)
    assert report.abandoned.total == 0


def test_a_response_that_only_a_superseded_version_has_counts_no_more(ledger: Ledger) -> None:
    turn = native_turn("t1", tokens=Tokens(input=100), end=1)
    prompt, answer = turn.items
    turn.items = (prompt, replace(answer, native="another"))
    take(ledger, "s", turn)
    take(ledger, "s", native_turn("t1", "longer", tokens=Tokens(input=7), end=1), reread=True)
    assert (ledger.usage.report().total.input, ledger.usage.report().total.responses) == (7, 1)


def test_a_current_version_without_numbers_has_those_of_the_other(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", "short", tokens=Tokens(input=100), end=1))
    take(ledger, "s", native_turn("t1", "longer", tokens=None, end=1), reread=True)
    assert ledger.usage.report().total.input == 100


def test_an_older_version_in_a_copy_is_what_a_naive_sum_would_add(ledger: Ledger) -> None:
    take(ledger, "one", native_turn("t1", "a", end=1), native_turn("t2", parent=0, offset=1, end=2))
    take(ledger, "two", native_turn("t1", "b", end=1), native_turn("t3", parent=0, offset=1, end=2), file="b.jsonl")
    report = ledger.usage.report()
    assert (report.total.total, report.naive.total) == (45, 60)


def test_a_retry_within_a_turn_is_paid_too(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.request("model-1")
        writer.response(usage=spent(3))
        writer.request("model-1", attempt=2)
        writer.response("at last", usage=spent(4, 2))
        writer.finish()
    assert parts(ledger.usage.report().total) == (7, 2, 0, 0, 9)


def test_a_failed_turn_and_its_retry_both_count(ledger: Ledger) -> None:
    ledger.record_turn(session="main", query="q", model="model-1", usage=spent(5), error="overloaded")
    ledger.record_turn(session="main", query="q", response="r", model="model-1", usage=spent(6))
    assert ledger.usage.report().total.input == 11


def test_several_models_in_one_turn_have_each_their_share(ledger: Ledger) -> None:
    take(ledger, "s", turn_of("t", response("a", "big", input=10), response("b", "small", input=1, output=2)))
    with ledger.begin_turn(session="own") as writer:
        writer.request("big")
        writer.response({"content": "x", "model": "big"}, usage=spent(100))
        writer.request("small")
        writer.response({"content": "y", "model": "small"}, usage=spent(1000))
        writer.finish()
    assert keys(ledger.usage.report(by="model")) == {"big": 110, "small": 1003}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_provider_message_in_several_turns_counts_once(ledger: Ledger, order: tuple[int, ...]) -> None:
    """Field by field the largest, for the turn that saw it first, in whatever order they came."""
    seen = [
        ("one", turn_of("t1", response("msg", at=NOON + 5, input=10, output=1), started=NOON)),
        ("two", turn_of("t2", response("msg", at=NOON, input=10, output=9, cached=2), started=NOON)),
        ("three", turn_of("t3", response("msg", at=NOON + 9, input=4), response("other", input=1), started=NOON)),
    ]
    for i in order:
        session, turn = seen[i]
        take(ledger, session, turn, file=f"{session}.jsonl")
    report = ledger.usage.report(by="session")
    assert keys(report) == {"two": 21, "three": 1}
    assert parts(report.total) == (11, 9, 2, 0, 22)
    assert ledger.usage.branch("two").marginal.total == 0
    assert (ledger.usage.branch("two").thread.total, ledger.usage.branch("three").marginal.total) == (21, 1)
    ledger.labels.delete("two")
    assert ledger.usage.report().abandoned.total == 0  # the others still contain it


def test_a_user_message_with_the_same_id_is_no_response(ledger: Ledger) -> None:
    take(ledger, "one", turn_of("same", response("same", input=10)))
    take(ledger, "two", turn_of("t2", response("r2", input=1)), file="b.jsonl")
    assert ledger.usage.report().total.input == 11


def test_what_was_reported_for_the_whole_turn_counts_under_its_model(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as writer:
        writer.request("model-1")
        writer.response("x", usage=spent(10, 1))
        writer.finish(usage=spent(5, 2))
    ledger.record_turn(session="main", query="only a turn", usage=spent(100))
    report = ledger.usage.report(by="model")
    assert keys(report) == {"model-1": 18, "(unknown)": 100}
    assert report.total.responses == 2


def test_a_bare_total_counts_and_has_no_price(ledger: Ledger) -> None:
    grow(ledger, "main", "a", model="model-1", usage={"total_tokens": 50})
    report = ledger.usage.report(prices=PRICES)
    assert (report.total.unspecified, report.total.total, report.total.cost) == (50, 50, None)
    assert [(row.model, row.tokens) for row in report.unpriced] == [("model-1", 50)]


def test_days_weeks_and_months_are_those_of_the_viewers_zone(ledger: Ledger, clock: FixedClock) -> None:
    """2026-11-15 is a Sunday; the first of January 2027 lies in the last week of 2026."""
    moments = [NOON - 1, NOON, NOON + DAY - HOUR, NOON + 46 * DAY + 23 * HOUR + HOUR // 2]
    for i, at in enumerate(moments):
        turn = turn_of(f"t{i}", response(f"r{i}", at=at, input=10**i), started=at)
        take(ledger, "s", turn, file=f"{i}.jsonl")
    assert keys(ledger.usage.report()) == {"2026-11-14": 1, "2026-11-15": 110, "2026-12-31": 1000}
    assert keys(ledger.usage.report("week")) == {"2026-W46": 111, "2026-W53": 1000}
    assert keys(ledger.usage.report("month")) == {"2026-11": 111, "2026-12": 1000}
    berlin, kathmandu = ZoneInfo("Europe/Berlin"), timezone(timedelta(hours=5, minutes=45))
    assert keys(ledger.usage.report(zone=berlin)) == {"2026-11-15": 11, "2026-11-16": 100, "2027-01-01": 1000}
    assert keys(ledger.usage.report("week", zone=berlin)) == {"2026-W46": 11, "2026-W47": 100, "2026-W53": 1000}
    assert keys(ledger.usage.report("month", zone=kathmandu)) == {"2026-11": 111, "2027-01": 1000}
    assert (ledger.usage.report(zone=berlin).zone, ledger.usage.report().zone) == ("Europe/Berlin", "UTC")


def test_a_turn_over_midnight_counts_on_both_days(ledger: Ledger) -> None:
    turn = turn_of("t", response("a", at=NOON - 1, input=1), response("b", at=NOON, input=2), started=NOON - 1)
    take(ledger, "s", turn)
    assert keys(ledger.usage.report()) == {"2026-11-14": 1, "2026-11-15": 2}


def test_what_has_no_time_is_undated_and_in_no_span(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", tokens=Tokens(input=3)))
    assert keys(ledger.usage.report()) == {"(undated)": 3}
    assert ledger.usage.report(since="2000-01-01").total.total == 0


def test_a_day_means_all_of_it(ledger: Ledger, clock: FixedClock) -> None:
    for i in range(4):
        grow(ledger, "main", str(i), usage=spent(10**i))
        clock.tick(DAY // 2)
    assert ledger.usage.report(since="2026-11-15", until="2026-11-15").total.total == 11
    assert ledger.usage.report(until="2026-11-15").total.total == 11
    assert ledger.usage.report(since="2026-11-15 12:00").total.total == 1110
    assert ledger.usage.report(since="today").total.total == 0
    assert ledger.usage.report(since="yesterday").total.total == 1100
    assert ledger.usage.report(since="13 hours ago", until=NOON + 3 * DAY // 2).total.total == 0
    report = ledger.usage.report(since=NOON + 1, until=NOON + DAY)
    assert (report.total.total, report.since_at, report.until_at) == (10, NOON + 1, NOON + DAY)


def test_projects_are_the_turns_own_or_their_sessions(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1", workspace="/w/api", end=1), workspace="/w")
    take(ledger, "s", native_turn("t2", offset=1, end=2), workspace="/w", file="b.jsonl")
    grow(ledger, "main", "a", "b", usage=spent(1), workspace="/w/api")
    grow(ledger, "main", "c", usage=spent(1))
    assert keys(ledger.usage.report("project")) == {"/w/api": 17, "/w": 15, "(none)": 1}
    found = {
        name: ledger.usage.report(project=name).total.total for name in ("/w", "/w/", "/w/api", "api", "/w/a", "(none)")
    }
    assert found == {"/w": 32, "/w/": 32, "/w/api": 17, "api": 17, "/w/a": 0, "(none)": 1}


def test_reports_are_limited_by_session_origin_and_model(ledger: Ledger) -> None:
    take(ledger, "s", native_turn("t1"))
    grow(ledger, "main", "a", model="gpt-9", usage=spent(1))
    grow(ledger, "main", "b", model="gpt-9-mini", usage=spent(2))
    assert keys(ledger.usage.report("origin")) == {ORIGIN: 15, "weft": 3}
    assert ledger.usage.report(origin="weft").total.total == 3
    assert ledger.usage.report(session="s").total.total == 15
    assert [ledger.usage.report(model=name).total.total for name in ("gpt-9", "gpt-9*", "gpt", "model-1")] == [
        1,
        3,
        0,
        15,
    ]
    with pytest.raises(NotFound):
        ledger.usage.report(session="nobody")


@pytest.mark.parametrize(
    "wrong",
    [
        {"by": "hour"},
        {"by": 3},
        {"since": "whenever"},
        {"until": 1.5},
        {"model": 7},
        {"zone": "UTC"},
        {"prices": {}},
        {"x": 1},
    ],
)
def test_what_makes_no_sense_is_refused(ledger: Ledger, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        ledger.usage.report(**wrong)


def test_the_marginal_cost_of_a_branch_is_what_only_it_contains(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c", model="model-1", usage=spent(1_000_000))
    ledger.fork(turns[1], label="alt")
    grow(ledger, "alt", "x", model="model-1", usage=spent(0, 1_000_000))
    ledger.fork("alt", label="same")
    main, alt = (ledger.usage.branch(name, prices=PRICES) for name in ("main", "alt"))
    assert (main.marginal.total, main.marginal.cost, main.marginal_turns) == (1_000_000, 3_000_000, 1)
    assert (main.thread.total, main.thread_turns) == (3_000_000, 3)
    assert (alt.marginal.total, alt.thread.cost) == (0, 21_000_000)
    ledger.labels.archive("same")
    alt = ledger.usage.branch("alt", prices=PRICES)
    assert (alt.marginal.cost, alt.marginal_turns) == (15_000_000, 1)
    assert [row.key for row in alt.models] == ["model-1"]
    assert ledger.usage.branch("same", prices=PRICES).marginal.cost == 0  # an archived one shares with those alive
    assert (alt.session, alt.session_id) == ("alt", ledger.session("alt").id)


def test_a_branch_without_a_head_costs_nothing(ledger: Ledger) -> None:
    ledger.create_session("new")
    assert ledger.usage.branch("new").thread.total == 0
    with pytest.raises(NotFound):
        ledger.usage.branch("nobody")


def test_abandoned_turns_are_told_with_the_session_they_were_in(ledger: Ledger) -> None:
    turns = grow(ledger, "main", "a", "b", "c", model="model-1", usage=spent(10))
    ledger.fork("main", label="gone")
    grow(ledger, "gone", "x", model="model-1", usage=spent(0, 1))
    assert ledger.usage.abandoned().turns == 0
    ledger.labels.delete("gone")
    ledger.move_head("main", new=turns[0])
    found = ledger.usage.abandoned(prices=PRICES)
    assert [(row.key, row.status, row.turns, row.total, row.cost, row.last_turn) for row in found.rows] == [
        ("main", "active", 2, 20, 60, turns[2]),
        ("gone", "deleted", 1, 1, 15, ledger.session(_deleted(ledger)).head),
    ]
    assert (found.total.total, found.turns) == (21, 3)
    report = ledger.usage.report()
    assert (report.abandoned.total, report.total.total, report.naive.total) == (21, 31, 10)
    ledger.labels.archive("main")
    assert ledger.usage.abandoned().turns == 3


def _deleted(ledger: Ledger) -> str:
    return next(session.id for session in ledger.sessions(every=True) if session.status == "deleted")


def test_threads_go_on_across_links_but_files_do_not(ledger: Ledger) -> None:
    take(ledger, "one", native_turn("t1", end=1))
    linked = native_turn("t2", link=NativeLink(to="t1", why=LinkReason.CONTINUATION), end=1)
    take(ledger, "two", linked, file="b.jsonl")
    assert ledger.usage.branch("two").thread.total == 30
    assert (ledger.usage.branch("one").marginal.total, ledger.usage.report().naive.total) == (0, 30)
    ledger.labels.delete("one")
    assert ledger.usage.report().abandoned.total == 0


def test_the_naive_sum_of_one_session_is_its_whole_thread(ledger: Ledger) -> None:
    grow(ledger, "main", "a", "b", usage=spent(1))
    ledger.fork("main", label="alt")
    grow(ledger, "alt", "c", usage=spent(10))
    report = ledger.usage.report(session="alt")
    assert (report.total.total, report.naive.total, report.naive_factor) == (10, 12, 1.2)


def test_a_report_survives_facts_out_and_in(ledger: Ledger) -> None:
    take(ledger, "one", turn_of("t1", response("msg", at=NOON, input=10)))
    take(ledger, "two", turn_of("t2", response("msg", at=NOON, input=10)), file="b.jsonl")
    grow(ledger, "main", "a", usage=spent(5))
    with copy_in_memory(ledger) as other:
        assert other.usage.report("model") == ledger.usage.report("model")


def test_costs_are_rounded_once_at_the_end(ledger: Ledger) -> None:
    """Each turn costs half a millionth of a micro-dollar or less; a million of them is not nothing."""
    for _ in range(3):
        grow(ledger, "main", "a", model="fine", usage=spent(250_000))
    rows = ledger.usage.report("model", prices=PRICES).rows
    assert [row.cost for row in rows] == [1]
    grow(ledger, "other", "a", model="fine", usage=spent(499_999))
    report = ledger.usage.report("session", prices=PRICES)
    assert {row.key: row.cost for row in report.rows} == {"main": 1, "other": 0}
    assert report.total.cost == 1
    assert isinstance(report.total.cost, int)


def test_a_model_without_a_price_is_listed_and_never_free(ledger: Ledger) -> None:
    grow(ledger, "main", "a", model="model-1", usage=spent(1_000_000))
    grow(ledger, "main", "b", model="mystery", usage=spent(7))
    grow(ledger, "main", "c", model="half-known", usage=spent(1_000_000, 9))
    report = ledger.usage.report("model", prices=PRICES)
    assert {row.key: (row.cost, row.unpriced) for row in report.rows} == {
        "model-1": (3_000_000, 0),
        "half-known": (1_000_000, 9),
        "mystery": (None, 7),
    }
    assert [(row.model, row.responses, row.tokens) for row in report.unpriced] == [
        ("half-known", 1, 9),
        ("mystery", 1, 7),
    ]
    assert (report.total.cost, report.total.unpriced, report.prices_as_of) == (4_000_000, 16, "2026-11-01")


def table(**models: Any) -> PriceTable:
    return prices_from({"models": models}, "test")


def inputs(found: PriceTable, *names: str) -> list[int | None]:
    return [price.input if (price := found.price(name, NOON)) else None for name in names]


def test_a_price_is_found_by_exact_name_then_by_the_longest_beginning() -> None:
    found = table(**{"a": {"input": 1}, "a-*": {"input": 2}, "a-b*": {"input": 3}, "x/a": {"input": 4}})
    assert inputs(found, "a", "a-", "a-z", "a-b", "a-bc", "ab", "A") == [1, 2, 2, 3, 3, None, None]
    assert inputs(found, "x/a", "y/a", "y/x/a", "y/a-b", "us.anthropic.a-b-v1:0") == [4, 1, 4, 3, 3]


def test_the_users_table_goes_before_the_shipped_one() -> None:
    own = table(**{"claude-*": {"input": 7}, "mine": {"input": 8}}).over(shipped_prices())
    assert inputs(own, "claude-opus-4-5", "mine", "gpt-5") == [7, 8, 1_250_000]


def test_prices_hold_from_a_day_until_another() -> None:
    found = table(m=[{"input": 1, "until": "2026-11-15"}, {"input": 2, "from": date(2026, 11, 15)}])
    assert [found.price("m", at).input for at in (NOON - 1, NOON)] == [1, 2]  # type: ignore[union-attr]
    assert found.price("m", None) == found.price("m", NOON)
    assert table(m={"input": 1, "from": "2026-11-15"}).price("m", NOON - 1) is None


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"models": {"m": {"input": 1.5}}},
        {"models": {"m": {"input": -1}}},
        {"models": {"m": {"inptu": 1}}},
        {"models": {"m": {"until": "soon"}}},
        {"models": {"m": {"from": "2026-01-02", "until": "2026-01-01"}}},
        {"model": {}},
    ],
)
def test_prices_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^my\.toml"):
        prices_from(wrong, "my.toml")


def test_the_shipped_table_knows_common_models() -> None:
    names = ["claude-sonnet-4-5-20250929", "claude-opus-4-1-20250805", "gpt-5-codex", "gemini-2.5-pro", "o3"]
    assert inputs(shipped_prices(), *names) == [3_000_000, 15_000_000, 1_250_000, 1_250_000, 2_000_000]
    assert inputs(shipped_prices(), "gpt-5-imaginary", "claude-opus-4-99", "big-pickle") == [None, None, None]
    assert str(shipped_prices().source).startswith("genai-prices ")
    assert shipped_prices().as_of is None


MODELS_OF_TODAY = {
    "openai": ["gpt-5.5", "gpt-5.4-2026-03-05", "gpt-4.1", "o4-mini"],
    "google": ["gemini-3-pro", "gemini-3.1-pro-preview", "gemini-2.5-flash"],
    "anthropic": ["claude-fable-5.1", "claude-opus-5", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"],
    "xai": ["grok-4", "grok-4.7", "x-ai/grok-code-fast-1"],
    "mistral": ["mistral-large-latest", "codestral-latest", "mistralai/mistral-medium-3.1"],
    "qwen": ["qwen3-coder-plus", "qwen/qwen3-coder", "qwen3-max"],
    "glm": ["glm-4.6", "GLM-4.7", "z-ai/glm-5"],
    "deepseek": ["deepseek-chat", "deepseek-reasoner", "deepseek-v4-pro"],
}


@pytest.mark.parametrize("maker", MODELS_OF_TODAY)
def test_models_of_today_have_a_price_of_every_kind(maker: str) -> None:
    for model in MODELS_OF_TODAY[maker]:
        price = shipped_prices().price(model, NOON)
        assert price is not None, model
        assert None not in [price.of(kind) for kind in PRICED], model


def test_a_price_depends_on_the_length_of_the_prompt_and_on_the_day() -> None:
    sonnet = shipped_prices()
    assert [sonnet.price("claude-sonnet-4-5", NOON, prompt).input for prompt in (200_000, 200_001)] == [  # type: ignore[union-attr]
        3_000_000,
        6_000_000,
    ]
    days = [date_ms(date(2026, 3, 12)), date_ms(date(2026, 3, 13))]
    assert [sonnet.price("claude-opus-4-6", day, 300_000).input for day in days] == [10_000_000, 5_000_000]  # type: ignore[union-attr]


def date_ms(day: date) -> int:
    return (day - date(1970, 1, 1)).days * DAY


def test_one_hour_cache_writes_cost_twice_the_input_where_no_price_says_otherwise(ledger: Ledger) -> None:
    usage = {"cache_write_tokens": 30_000, "cache_write_1h_tokens": 10_000}
    ledger.record_turn(session="main", query="q", response="r", model="m", usage=usage)
    told = ledger.usage.report("model", prices=table(m={"input": 10_000, "cache_write": 12_500}))
    assert (told.total.cache_write, told.total.cache_write_1h, told.total.cost) == (30_000, 10_000, 450)
    assert told.total.costs == KindCosts(input=0, output=0, cached=0, cache_write=250, cache_write_1h=200)
    own = table(m={"input": 10_000, "cache_write": 12_500, "cache_write_1h": 50_000})
    assert ledger.usage.report("model", prices=own).total.costs.cache_write_1h == 500
    assert ledger.usage.report("model", prices=table(m={"cache_write": 1_000_000})).total.unpriced == 10_000


def test_the_embedded_model_costs_nothing(ledger: Ledger) -> None:
    usage = {"input_tokens": 5_000, "output_tokens": 100}
    ledger.record_turn(session="a", query="q", response="r", model="SmolLM2-135M-Instruct", usage=usage)
    with ledger.begin_turn(session="b") as turn:
        turn.message("q")
        turn.request("qwen2.5-7b-instruct", provider="local")
        turn.response("r", usage=usage)
        turn.finish()
    report = ledger.usage.report("model")
    assert [(row.cost, row.unpriced) for row in report.rows] == [(0, 0), (0, 0)]
    assert report.unpriced == ()


def test_what_a_server_calls_free_is_not_priced_as_the_model_that_it_sells() -> None:
    prices = shipped_prices()
    sold = prices.price("deepseek-chat", None)
    assert sold is not None
    assert sold.input
    for name in ("deepseek-chat:free", "deepseek/deepseek-chat:free", "deepseek-chat-free"):
        assert prices.price(name, None) == FREE
    own = prices_from({"models": {"deepseek-chat:free": {"input": 5, "output": 5}}}, "a file").over(prices)
    assert own.price("deepseek-chat:free", None) != FREE


def test_a_model_of_a_server_on_this_machine_has_no_price_unless_it_is_given_one(ledger: Ledger) -> None:
    with ledger.begin_turn(session="main") as turn:
        turn.message("q")
        turn.request("llama3.2", provider="ollama")
        turn.response("r", usage={"input_tokens": 5})
        turn.finish()
    assert [(row.key, row.cost) for row in ledger.usage.report("model").rows] == [("llama3.2", None)]


def test_a_name_with_a_dot_that_toml_took_apart_is_refused_with_the_way_to_write_it() -> None:
    data = tomllib.loads("[models.gpt-4.1]\ninput = 1\n")
    with pytest.raises(InvalidInput, match=r'\[models\."gpt-4\.1"\]'):
        prices_from(data, "my.toml")
    quoted = prices_from(tomllib.loads('[models."gpt-4.1"]\ninput = 1\n'), "my.toml")
    assert inputs(quoted, "gpt-4.1", "openai/gpt-4.1") == [1, 1]


STEPS = st.lists(
    st.tuples(st.sampled_from(["grow", "fork", "copy", "move", "delete"]), st.integers(0, 9), st.integers(1, 99)),
    max_size=25,
)


@settings(max_examples=7 * PROPERTY_SCALE, deadline=None)
@given(STEPS)
def test_the_sum_is_that_of_all_distinct_responses_whatever_forks_exist(steps: list[tuple[str, int, int]]) -> None:
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        labels, turns = ["s0"], grow(ledger, "s0", "first", usage=spent(1))
        expected = 1
        responses: dict[str, int] = {}
        for i, (what, which, tokens) in enumerate(steps):
            label = labels[which % len(labels)]
            if what == "grow":
                turns += grow(ledger, label, str(i), usage=spent(tokens))
                expected += tokens
            elif what == "fork":
                labels.append(ledger.fork(turns[which % len(turns)], label=f"fork-{i}").label)
            elif what == "copy":
                native = f"msg-{which % 3}"
                responses[native] = max(tokens, responses.get(native, 0))
                take(ledger, f"c{i}", turn_of(f"t{i}", response(native, input=tokens)), file=f"{i}.jsonl")
            elif what == "move":
                ledger.move_head(label, new=turns[which % len(turns)])
            elif len(labels) > 1:
                ledger.labels.delete(labels.pop(which % len(labels)))
        report = ledger.usage.report("session")
        assert report.total.total == expected + sum(responses.values()) == sum(row.total for row in report.rows)
        living = [session for session in ledger.sessions(every=True) if session.status != "deleted" and session.head]
        assert report.naive.total == sum(ledger.thread(session.label).total_tokens for session in living)
        _check_branches(ledger, report)


def _check_branches(ledger: Ledger, report: UsageReport) -> None:
    """Turn by turn, the slow way: what one thread, no thread and the whole thread contain."""
    own = [session for session in ledger.sessions() if session.origin == "weft" and session.head]
    tokens = {turn.id: turn.usage.total_tokens for turn in ledger.log() if turn.origin is None}
    threads = {session.label: set(ledger.thread(session.label).ancestry) for session in own}
    for label, thread in threads.items():
        others = set().union(*(found for name, found in threads.items() if name != label))
        branch = ledger.usage.branch(label)
        assert branch.thread.total == sum(int(tokens[turn] or 0) for turn in thread)
        assert branch.marginal.total == sum(int(tokens[turn] or 0) for turn in thread - others)
    left = set(tokens) - set().union(*threads.values())
    assert report.abandoned.total == sum(int(tokens[turn] or 0) for turn in left)


COPIES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.lists(st.integers(0, 3), max_size=2), st.integers(0, 9)),
    min_size=2,
    max_size=10,
)


@settings(max_examples=sized(test=7, prove=1125), deadline=None)
@given(COPIES)
def test_a_part_of_the_ledger_is_counted_as_among_all_of_it(copies: list[tuple[int, int, list[int], int]]) -> None:
    """Responses that several turns hold, and turns of several versions, some without numbers."""
    with weft.open(":memory:", clock=FixedClock(NOON)) as ledger:
        for i, (session, key, natives, tokens) in enumerate(copies):
            said = [response(f"msg-{native}", input=tokens, output=i) for native in natives]
            said = [replace(each, tokens=None) for each in said] if tokens == 0 else said
            turn = turn_of(f"t{key}", *said, started=NOON + i, end=1)
            turn.records = (orjson.dumps([key, i]),)
            take(ledger, f"s{session}", turn, file=f"{session}.jsonl", reread=True)
        with ledger._store.read() as txn:
            survey = UsageSurvey(txn, timezone.utc, None)  # noqa: UP017 - the alias hides what it is
            everything = list(survey.responses())
            for head in survey.heads("1 = 1"):
                own = ThreadReach(survey.tree, [head])
                rows = [row for segment in own.segments for row in reported(txn.sql, segment)]
                some = [one for one in survey.responses_of(rows, own.contains) if _lies_in(one, own)]
                assert sorted(map(_told, some)) == sorted(_told(one) for one in everything if _lies_in(one, own))
        for made in ledger.log():
            counted = [one for one in everything if one.first.turn.id == made.id]
            assert ledger.usage.tree(made.id).root.own.total == sum(sum(one.tokens[:4]) for one in counted)


def _lies_in(response: CountedResponse, own: ThreadReach) -> bool:
    return any(own.contains(*place) for place in response.places)


def _told(response: CountedResponse) -> tuple[Any, ...]:
    return response.first.turn.id, response.tokens, response.recorded or 0, sorted(response.places)


def test_responses_of_older_versions_are_looked_for_by_their_ids(disk: Ledger) -> None:
    with disk._store.read() as txn:
        steps = [str(row[3]) for row in txn.sql.fetch_rows(f"EXPLAIN QUERY PLAN {STANDING}")]
    searches = [step for step in steps if "FILTER" not in step]
    assert [step.split()[1] for step in searches] == ["u", "o", "m", "t"]
    assert "native=?" in searches[2]
