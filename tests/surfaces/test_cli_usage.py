"""`weft usage`: tables, charts, branches, prices of one's own, and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weft as library
from tests.exchange.corpus import aged
from tests.exchange.priced_sessions import write_sessions
from tests.ledger.imported import native_turn, take
from tests.surfaces.shell import Shell, on_terminal
from weft.kernel.clock import FixedClock, ms_from_iso
from weft.surfaces.cli.command_line import MOST_UNCOUNTED_EVENTS
from weft.surfaces.cli.progress import bar

LATE = "2026-03-02T23:30:00.000Z"


@pytest.fixture(autouse=True)
def _no_prices_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def usage(input: int, output: int = 0, **more: int) -> dict[str, int]:
    return {"input_tokens": input, "output_tokens": output, **more}


@pytest.fixture
def spent(shell: Shell, folder: Path) -> Shell:
    """Two days, two branches, one of them deleted; a model without a price."""
    clock = FixedClock(ms_from_iso(LATE))
    (folder / ".weft").mkdir()
    with library.open(folder / ".weft" / "ledger.db", clock=clock) as ledger:
        opus: dict[str, Any] = {"model": "claude-opus-4-5", "workspace": "/home/me/api"}
        ledger.record_turn(session="main", query="a", response="b", usage=usage(1_000_000), **opus)
        ledger.fork("main", label="alt")
        ledger.record_turn(session="alt", query="a", response="b", usage=usage(0, 1000), model="my-model")
        clock.tick(3_600_000)
        cached = usage(0, 200_000, cached_input_tokens=3_000_000)
        ledger.record_turn(session="main", query="a", response="b", usage=cached, **opus)
    return shell


def test_a_pipe_gets_plain_rows_and_the_notes_beside_them(spent: Shell) -> None:
    answer = spent("usage")
    assert answer.out == (
        "2026-03-02\t1001000\t1000000\t0\t0\t1000\t5000000\n2026-03-03\t3200000\t0\t0\t3000000\t200000\t6500000\n"
    )
    assert "without a price, and in no cost (tokens): my-model (1,000)" in answer.err
    assert "a sum over every session by itself would say 5,201,000 tokens, $16.50+, 1.24 times as much" in answer.err
    assert spent("usage", "--quiet").err == ""


def test_a_sum_over_sessions_is_told_where_it_would_say_more(shell: Shell, folder: Path) -> None:
    (folder / ".weft").mkdir()
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        ledger.record_turn(session="large", query="a", response="b", usage=usage(1_000_000), model="gpt-4.1")
        ledger.record_turn(session="small", query="a", response="b", usage=usage(100), model="gpt-4.1")
        ledger.fork("small", label="other")
        assert ledger.usage.report("day").naive_factor == 1.0001
        assert "by itself would say" not in shell("usage").err
        ledger.labels.delete("large")
        assert ledger.usage.report("day").naive_factor == 0.0002
        assert "by itself would say" not in shell("usage").err


def test_a_sum_over_sessions_says_nothing_of_a_cost_that_is_not_known(shell: Shell, folder: Path) -> None:
    (folder / ".weft").mkdir()
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        ledger.record_turn(session="main", query="a", response="b", usage=usage(1000), model="my-model")
        ledger.fork("main", label="other")
    assert "by itself would say 2,000 tokens, 2.00 times as much" in shell("usage").err


def test_days_are_the_viewers_and_those_of_json_are_utc(spent: Shell, zone: Callable[[str], None]) -> None:
    zone("Europe/Berlin")
    assert [line.split("\t")[0] for line in spent("usage").out.splitlines()] == ["2026-03-03"]
    assert [row["key"] for row in spent.json("usage")["rows"]] == ["2026-03-02", "2026-03-03"]
    found = spent.json("usage", "--since", "2026-03-03", "--until", "2026-03-03")
    assert (found["since_at"], found["until_at"]) == ("2026-03-02T23:00:00.000Z", "2026-03-03T23:00:00.000Z")
    assert (found["zone"], found["total"]["total"]) == ("UTC", 4_201_000)


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("week", ["2026-W10"]),
        ("month", ["2026-03"]),
        ("project", ["/home/me/api", "(none)"]),
        ("session", ["main", "alt"]),
        ("model", ["claude-opus-4-5", "my-model"]),
        ("origin", ["weft"]),
    ],
)
def test_usage_by_everything(spent: Shell, by: str, keys: list[str]) -> None:
    assert [line.split("\t")[0] for line in spent("usage", "--by", by).out.splitlines()] == keys
    assert [row["key"] for row in spent.json("usage", "--by", by)["rows"]] == keys


def test_what_has_no_price_is_never_shown_as_nothing(spent: Shell) -> None:
    rows = {row["key"]: row for row in spent.json("usage", "--by", "model")["rows"]}
    assert (rows["my-model"]["cost"], rows["my-model"]["unpriced"]) == (None, 1000)
    assert spent("usage", "--by", "model").out.splitlines()[1].split("\t")[-1] == ""
    assert "       ?" in spent("usage", "--by", "model", "--chart").out


def test_reports_can_be_narrowed(spent: Shell) -> None:
    def total(*options: str) -> int:
        return int(spent.json("usage", *options)["total"]["total"])

    assert total("--session", "alt") == total("--model", "my-*") == 1000
    assert total("--project", "api") == total("--project", "/home/me") == 4_200_000
    assert total("--origin", "codex") == total("--project", ".") == 0
    assert total("--until", "2026-03-02") == 1_001_000
    assert spent("usage", "--session", "nobody").code == 3
    assert spent("usage", "--since", "whenever").code == 5


def test_the_last_days_and_the_dearest_models_come_under_a_limit(spent: Shell) -> None:
    assert spent("usage", "-n", "1").out.startswith("2026-03-03")
    assert spent("usage", "--by", "model", "-n", "1").out.startswith("claude-opus-4-5")
    assert "(1 more rows are in the total)" in spent("usage", "-n", "1", "--chart").out


def test_a_branch_alone_and_what_was_abandoned(spent: Shell) -> None:
    found = spent.json("usage", "--branch", "main")
    assert (found["marginal"]["total"], found["marginal"]["cost"], found["thread"]["cost"]) == (
        3_200_000,
        6_500_000,
        11_500_000,
    )
    assert spent("usage", "--branch", "main").out.splitlines()[0].split("\t")[:2] == ["marginal", "3200000"]
    nothing = spent("usage", "--abandoned")
    assert (nothing.out, nothing.err) == (
        "",
        "nothing was abandoned: every turn that cost something is in a session\n",
    )
    assert spent("delete", "alt").code == 0
    (row,) = spent.json("usage", "--abandoned")["rows"]
    assert (row["key"], row["status"], row["turns"], row["total"], row["cost"]) == ("alt", "deleted", 1, 1000, None)
    assert spent("usage", "--abandoned").out.startswith("alt\tdeleted\t1\t1000\t\t")
    assert "1,000 tokens (cost unknown) are in no session any more" in spent("usage").err


@pytest.mark.parametrize(
    "options",
    [
        ("--branch", "main", "--abandoned"),
        ("--branch", "main", "--model", "x"),
        ("--branch", "main", "--by", "model"),
        ("--abandoned", "--by", "day"),
        ("--abandoned", "-n", "3"),
    ],
)
def test_a_branch_and_what_was_abandoned_stand_alone(spent: Shell, options: tuple[str, ...]) -> None:
    assert spent("usage", *options).code == 2


OWN = """
as_of = 2026-03-01
[models."my-*"]
output = 2_000_000
[[models.claude-opus-4-5]]
input = 1
until = 2026-03-03
"""


def test_ones_own_prices_go_before_the_shipped_ones(
    spent: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "config" / "weft" / "prices.toml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    costs = {"2026-03-02": 2_001, "2026-03-03": 6_500_000}
    found = spent.json("usage", "--prices", str(own))
    assert {row["key"]: row["cost"] for row in found["rows"]} == costs
    assert (found["unpriced"], found["prices_as_of"]) == ([], "2026-03-01")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert {row["key"]: row["cost"] for row in spent.json("usage")["rows"]} == costs
    other = tmp_path / "prices.json"
    other.write_text(json.dumps({"models": {"my-model": {"output": 1_000_000}}}))
    assert spent.json("usage", "--session", "alt", "--prices", str(other))["total"]["cost"] == 1000


@pytest.mark.parametrize("text", ["models = 3", "[models.m]\ninput = 1.5", "not toml", "\udcff"])
def test_prices_that_cannot_be_read_are_refused_with_their_path(spent: Shell, tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    answer = spent("usage", "--prices", str(path))
    assert answer.code == 5
    assert answer.err.startswith(f"weft: {path}: ")
    assert "docs/reading.md" in answer.err
    assert spent("usage", "--prices", str(tmp_path / "none.toml")).code == 7


def test_an_empty_ledger_says_what_to_do(weft: Shell) -> None:
    assert "no usage yet" in weft("usage").err
    assert weft("usage").out == ""
    assert "nothing was spent on that" in weft("usage", "--model", "x").err
    assert weft.json("usage")["rows"] == []


CHART = """\
MODEL               TOKENS      INPUT  CACHE WRITE  CACHE READ   OUTPUT     COST
claude-opus-4-5  4,200,000  1,000,000            0   3,000,000  200,000   $11.50  {bar}
my-model             1,000          0            0           0    1,000        ?
total            4,201,000  1,000,000            0   3,000,000  201,000  $11.50+
"""


def test_a_terminal_gets_a_chart(spent: Shell, folder: Path) -> None:
    code, shown = on_terminal(folder, "usage", "--by", "model", "--no-color", COLUMNS="120")
    assert code == 0
    assert shown.startswith(CHART.format(bar="█" * 30))
    assert "75% of all input came from caches, which saved $13.50" in shown
    assert "prices from genai-prices 0." in shown
    plain = on_terminal(folder, "usage", "--by", "model", "--no-color", PYTHONIOENCODING="ascii", COLUMNS="120")[1]
    assert plain.startswith(CHART.format(bar="#" * 30))
    without = on_terminal(folder, "usage", "--by", "model", "--no-color", "--no-chart")[1]
    assert without.startswith(CHART.replace("  {bar}", ""))


def test_a_terminal_tells_of_a_branch_and_of_what_was_abandoned(spent: Shell, folder: Path) -> None:
    spent.record("without usage")
    assert on_terminal(folder, "usage", "--branch", "main", "--no-color")[1].startswith(
        "main alone: 3,200,000 tokens, $6.50, in 1 turn with usage\n"
        "its whole thread: 4,200,000 tokens, $11.50, in 2 turns with usage\n"
        "  claude-opus-4-5: 3,200,000 tokens, $6.50\n"
    )
    spent("delete", "alt")
    shown = on_terminal(folder, "usage", "--abandoned", "--no-color")[1]
    assert shown.startswith("ONCE IN  STATUS   TURNS  TOKENS  COST  LAST TURN\nalt      deleted      1   1,000     ?  ")
    assert "1,000 tokens, ?, in 1 turn with usage\n" in shown


def test_bars_are_in_eighths_and_never_hide_what_is_there() -> None:
    assert [bar(value, 80, 10, True) for value in (0, 80, 40, 1, 11)] == ["", "█" * 10, "█" * 5, "▏", "█▍"]
    assert [bar(value, 80, 10, False) for value in (0, 80, 40, 1)] == ["", "#" * 10, "#" * 5, "#"]
    assert bar(1, 0, 10, True) == bar(1, 1, 0, True) == ""


NOTED = """
[models."gpt-4.1"]
input = 1_000_000
output = 1_000_000
"""


def test_costs_that_a_tool_noted_are_told_where_they_count_and_where_they_differ(weft: Shell, tmp_path: Path) -> None:
    files = [aged(path) for paths in write_sessions(tmp_path / "project").values() for path in paths]
    assert weft("import", *map(str, files)).code == 0
    told = weft("usage", "--by", "model").err
    assert "nobody-sells-this: $0.0125 as its tool noted, since it has no price" in told
    assert "gpt-4.1: its tool noted $0.0300 for what costs $0.0200 at these prices" in told
    assert "15,000 tokens were written to the cache for an hour" in told
    own = tmp_path / "mine.toml"
    own.write_text(NOTED)
    rows = {row["key"]: row for row in weft.json("usage", "--by", "model", "--prices", str(own))["rows"]}
    assert rows["gpt-4.1"]["cost"] == 4_000
    assert rows["gpt-4.1"]["recorded"] == {"used": 0, "noted": 30_000, "priced": 4_000}
    assert rows["claude-opus-4-5-20251101"]["costs"]["cache_write_1h"] == 100_000


def test_the_help_shows_how_prices_are_written_and_that_can_be_read(weft: Shell, tmp_path: Path) -> None:
    shown = weft("help", "usage").out
    example = shown[shown.index("[models.") : shown.index("Options:")]
    own = tmp_path / "mine.toml"
    own.write_text("\n".join(line.strip() for line in example.splitlines()))
    usage = {"input_tokens": 1_000_000, "cache_write_tokens": 1_000_000, "cache_write_1h_tokens": 1_000_000}
    weft.record("q", model="gpt-4.1", usage=usage)
    assert weft.json("usage", "--prices", str(own))["total"]["cost"] == 6_000_000


def test_titles_stand_beside_the_labels_of_sessions(spent: Shell, folder: Path) -> None:
    label = "c0fff321-8eb1-4c18-b759-7c6c08c0f868"
    with library.open(folder / ".weft" / "ledger.db") as ledger:
        take(ledger, label, native_turn("cats"), title="A title of\tso many words that no screen has room for it")
    rows = {row["key"]: row for row in spent.json("usage", "--by", "session")["rows"]}
    assert (rows["main"]["title"], rows[label]["title"][:10]) == (None, "A title of")
    assert "title" not in spent.json("usage", "--by", "model")["rows"][0]
    lines = [line.split("\t") for line in spent("usage", "--by", "session").out.splitlines()]
    shown = {line[0]: line[-1] for line in lines}
    assert shown == {"main": "a", "alt": "a", label: "A title of so many words that no screen has room for it"}
    page = spent("usage", "--by", "session", "--chart").out
    assert 'c0fff321 "A title of so many words that' in page
    assert 'main "a" ' in page
    assert spent.json("usage", "--session", "c0fff321")["total"]["total"] == rows[label]["total"] > 0


@pytest.fixture
def uncounted(shell: Shell, folder: Path) -> Path:
    """A ledger with more events than a command counts by itself each time."""
    (folder / ".weft").mkdir()
    path = folder / ".weft" / "ledger.db"
    with library.open(path) as ledger:
        turns = MOST_UNCOUNTED_EVENTS // 4
        ledger.record_turns([{"session": "main", "query": f"q{i}", "usage": usage(1)} for i in range(turns)])
        assert ledger.usage.lag() > MOST_UNCOUNTED_EVENTS
    return path


def uncounted_events(path: Path) -> int:
    with library.open(path, read_only=True) as ledger:
        return ledger.usage.lag()


def test_a_backup_stays_as_it_is_however_much_of_it_is_not_counted(shell: Shell, uncounted: Path) -> None:
    backup = uncounted.with_name("backup.db")
    with library.open(uncounted) as ledger:
        ledger.upkeep.backup(backup)
    before = backup.read_bytes()
    for command in (("usage",), ("projects",), ("story", "all")):
        assert shell("--ledger", str(backup), *command).code == 0
        assert backup.read_bytes() == before, command
    assert shell("usage").code == 0
    assert (uncounted_events(uncounted), uncounted_events(backup) > 0) == (0, True)


def test_what_reads_responses_alone_neither_counts_nor_loads_totals(
    shell: Shell, uncounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = uncounted_events(uncounted)
    monkeypatch.setattr("weft.ledger.reports.usage.load_totals", None)
    for options in (("--branch", "main"), ("--tree", "main~0"), ("--abandoned",)):
        assert shell("usage", *options).code == 0
        assert uncounted_events(uncounted) == before


def test_totals_are_stored_again_by_the_first_report_after_an_erasure(shell: Shell, uncounted: Path) -> None:
    assert shell("usage").code == 0
    assert uncounted_events(uncounted) == 0
    with library.open(uncounted) as ledger:
        ledger.erasure.erase(ledger.log()[0].id, reason="asked to")
    assert uncounted_events(uncounted) > 0
    assert shell("usage").code == 0
    assert uncounted_events(uncounted) == 0


def test_usage_by_provider_says_of_whom_no_vendor_is_known(spent: Shell) -> None:
    shown = spent("usage", "--by", "provider")
    assert "(unknown)" in shown.out
    assert "(unknown): a server of your own, or a source that names no vendor" in shown.out + shown.err
    assert "(unknown):" not in (answer := spent("usage", "--by", "model")).out + answer.err
