"""Prices of the maintained table as plain values: what they say, and where they are kept for the next process."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from genai_prices.data import providers
from genai_prices.types import ModelInfo, TieredPrices

from tests.ledger.conftest import NOON
from tests.ledger.test_usage import DAY, HOUR
from weft.kernel.contents import MAX_INTEGER
from weft.ledger.reports import prices
from weft.ledger.reports.prices import (
    FILE,
    KINDS,
    KindPrice,
    MaintainedPrices,
    PricePeriod,
    PriceSchedule,
    _micro_dollars,
    _schedule_of,
    kept_prices,
)
from weft.ledger.reports.usage_totals import PROMPT_STEPS

DAYS = (-900, -300, -30, 0, 90)
MOMENTS = [NOON + days * DAY + hours * HOUR + 30 * 60_000 for days in DAYS for hours in range(0, 24, 3)]
PROMPTS = [0, *(step + more for step in PROMPT_STEPS for more in (0, 1)), 10**7]
MODELS = [model for provider in providers for model in provider.models]


def priced_by_the_package(model: ModelInfo, at: int, prompt: int) -> int | None:
    """A million tokens of input."""
    value = model.get_prices(datetime.fromtimestamp(at / 1000, UTC)).input_mtok
    if not isinstance(value, TieredPrices):
        return None if value is None else _micro_dollars(value)
    tiers = sorted(value.tiers, key=lambda tier: -tier.start)
    return next((_micro_dollars(tier.price) for tier in tiers if prompt > tier.start), _micro_dollars(value.base))


@pytest.mark.slow("prices every model that the package knows, at several moments")
def test_every_model_costs_what_the_package_says() -> None:
    assert len(MODELS) > 500
    for model in MODELS:
        schedule = _schedule_of(model)
        for at in MOMENTS if isinstance(model.prices, list) else MOMENTS[:1]:
            for prompt in PROMPTS if schedule.steps.prompts else PROMPTS[:1]:
                assert schedule.price(at, prompt).input == priced_by_the_package(model, at, prompt), model.id


def test_totals_know_every_length_of_a_prompt_at_which_a_price_of_the_package_changes() -> None:
    steps = [_schedule_of(model).steps for model in MODELS]
    assert {prompt for step in steps for prompt in step.prompts} <= set(PROMPT_STEPS)
    assert all(step.is_by_quarters for step in steps)


def test_hours_go_over_midnight_and_may_begin_within_a_quarter() -> None:
    cheap, dear = ({kind: KindPrice(price) for kind in KINDS} for price in (1, 2))
    night = PricePeriod(cheap, hours=(timedelta(hours=22, minutes=10), timedelta(hours=6)))
    schedule = PriceSchedule((PricePeriod(dear), night))
    midnight = NOON // DAY * DAY
    minutes = [midnight + 22 * HOUR + 9 * 60_000, midnight + 22 * HOUR + 10 * 60_000, midnight, midnight + 6 * HOUR]
    assert [schedule.price(at, 0).input for at in minutes] == [2, 1, 1, 2]
    assert (schedule.price(None, 0).input, schedule.price(MAX_INTEGER, 0).input) == (1, 1)
    assert not schedule.steps.is_by_quarters


def test_what_was_looked_up_is_found_by_the_next_process(tmp_path: Path) -> None:
    table = kept_prices(tmp_path)
    first = [table.price(model, NOON) for model in ("claude-sonnet-4-5", "nobody-knows-it")]
    table.keep()
    again = kept_prices(tmp_path)
    assert [again.price(model, NOON) for model in ("claude-sonnet-4-5", "nobody-knows-it")] == first
    assert again.source == table.source
    asked = (
        "import sys; from pathlib import Path; from weft.ledger.reports.prices import kept_prices;"
        " table = kept_prices(Path(sys.argv[1])); print(table.source, table.price('claude-sonnet-4-5', None).input,"
        " 'genai_prices' in sys.modules, 'importlib.metadata' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", asked, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [*(table.source or "").split(), "3000000", "False", "False"]


@pytest.mark.parametrize("text", ["", "{", '{"source": "x", "stamps": [[1, 2]], "schedules": {"a": null}}'])
def test_a_file_that_is_none_or_of_other_data_counts_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    table = kept_prices(tmp_path)
    assert table.price("claude-sonnet-4-5", NOON) == MaintainedPrices().find(["claude-sonnet-4-5"], NOON, 0)
    table.keep()
    assert (tmp_path / FILE).read_text() != text


def test_what_another_version_of_our_own_prices_looked_up_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_with(tmp_path, FREE)
    assert input_price(tmp_path) == 0
    (tmp_path / "prices.py").write_text("another version")
    monkeypatch.setattr(prices, "__file__", str(tmp_path / "prices.py"))
    assert input_price(tmp_path) == 3_000_000


def input_price(folder: Path) -> int | None:
    price = kept_prices(folder).price("claude-sonnet-4-5", NOON)
    return None if price is None else price.input


def kept_with(folder: Path, schedule: Any) -> Path:
    """What is kept, with other prices of a model."""
    table = kept_prices(folder)
    table.price("claude-sonnet-4-5", NOON)
    table.keep()
    kept = msgspec.json.decode((folder / FILE).read_bytes())
    (folder / FILE).write_bytes(msgspec.json.encode({**kept, "schedules": {"claude-sonnet-4-5": schedule}}))
    return folder / FILE


FREE = {"periods": [{"kinds": {kind: {"base": 0} for kind in KINDS}}]}
DEBTS = {"periods": [{"kinds": {kind: {"base": -1} for kind in KINDS}}]}


@pytest.mark.parametrize("schedule", [{"periods": []}, {"periods": [{"kinds": {}}]}, DEBTS])
def test_a_schedule_that_prices_nothing_counts_as_none(tmp_path: Path, schedule: Any) -> None:
    kept_with(tmp_path, schedule)
    price = kept_prices(tmp_path).price("claude-sonnet-4-5", NOON)
    assert price == MaintainedPrices().find(["claude-sonnet-4-5"], NOON, 0)


@pytest.mark.parametrize("way", ["plain", "link", "writable", "pipe"])
def test_a_file_that_others_could_have_written_counts_as_empty(tmp_path: Path, way: str) -> None:
    file = kept_with(tmp_path, FREE)
    if way == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif way == "writable":
        file.chmod(0o620)
    elif way == "pipe":
        file.unlink()
        os.mkfifo(file)
    price = kept_prices(tmp_path).price("claude-sonnet-4-5", NOON)
    assert price is not None
    assert (price.input == 0) == (way == "plain")


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    table = kept_prices(tmp_path / "file" / "below")
    assert table.price("claude-sonnet-4-5", NOON) is not None
    table.keep()
