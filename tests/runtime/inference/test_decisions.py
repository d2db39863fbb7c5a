"""What is decided without asking anybody: routes, parameters, tries, budgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.kernel.errors import BudgetSpent, InvalidInput, ProviderFailed, RateLimited, RequestRefused
from weft.kernel.events import Usage
from weft.ledger.reports.prices import TokenPrice
from weft.runtime.inference.local_models import thread_count
from weft.runtime.inference.model_requests import (
    AskAgain,
    Dialect,
    GiveUp,
    KeySlot,
    ModelParameters,
    ModelSettings,
    NextModel,
    OpenAIApi,
    ProviderKind,
    ProviderSettings,
    RequestBudget,
    RetryPolicy,
    cost_of,
    next_step,
    route_of,
)

GATEWAY = ProviderSettings(
    id="cf",
    kind=ProviderKind.CLOUDFLARE,
    account_id="acc",
    gateway_id="gw",
    credential="key",
    gateway_credential="token",
)
ROOT = "https://gateway.ai.cloudflare.com/v1/acc/gw"
TOKEN = KeySlot("cf-aig-authorization", "Bearer ", "token")


def model(name: str, provider: ProviderSettings) -> ModelSettings:
    return ModelSettings(id="m", name=name, provider=provider)


def direct(kind: ProviderKind, **more: str) -> ProviderSettings:
    return ProviderSettings(id="p", kind=kind, credential="key", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "dialect", "path", "sent", "key"),
    [
        ("claude-sonnet-4-5", Dialect.ANTHROPIC, "anthropic", "claude-sonnet-4-5", ("x-api-key", "")),
        ("anthropic/claude-x", Dialect.ANTHROPIC, "anthropic", "claude-x", ("x-api-key", "")),
        ("gpt-5", Dialect.OPENAI_CHAT, "openai", "gpt-5", ("authorization", "Bearer ")),
        ("o3-mini", Dialect.OPENAI_CHAT, "openai", "o3-mini", ("authorization", "Bearer ")),
        ("gemini-2.5-flash", Dialect.GOOGLE, "google-ai-studio", "gemini-2.5-flash", ("x-goog-api-key", "")),
        ("@cf/meta/llama-3", Dialect.OPENAI_CHAT, "workers-ai/v1", "@cf/meta/llama-3", ("authorization", "Bearer ")),
        ("grok/grok-4", Dialect.OPENAI_CHAT, "compat", "grok/grok-4", ("authorization", "Bearer ")),
    ],
)
def test_behind_a_gateway_the_name_chooses_the_provider(
    name: str, dialect: Dialect, path: str, sent: str, key: tuple[str, str]
) -> None:
    route = route_of(model(name, GATEWAY))
    assert (route.dialect, route.url, route.model) == (dialect, f"{ROOT}/{path}", sent)
    assert route.keys == (TOKEN, KeySlot(*key, "key"))


def test_a_gateway_that_holds_the_keys_itself_gets_only_its_own() -> None:
    stored = ProviderSettings(
        id="cf", kind=ProviderKind.CLOUDFLARE, account_id="a", gateway_id="g", gateway_credential="token"
    )
    assert route_of(model("claude-x", stored)).keys == (TOKEN,)


@pytest.mark.parametrize(
    ("kind", "api", "dialect", "url"),
    [
        (ProviderKind.ANTHROPIC, None, Dialect.ANTHROPIC, "https://api.anthropic.com"),
        (ProviderKind.OPENAI, None, Dialect.OPENAI_RESPONSES, "https://api.openai.com/v1"),
        (ProviderKind.OPENAI, OpenAIApi.CHAT, Dialect.OPENAI_CHAT, "https://api.openai.com/v1"),
        (ProviderKind.GOOGLE, None, Dialect.GOOGLE, "https://generativelanguage.googleapis.com"),
    ],
)
def test_a_provider_has_its_home(kind: ProviderKind, api: OpenAIApi | None, dialect: Dialect, url: str) -> None:
    route = route_of(model("x", ProviderSettings(id="p", kind=kind, api=api)))
    assert (route.dialect, route.url, route.keys, route.compatible) == (dialect, url, (), False)


def test_settings_that_lead_nowhere_are_refused() -> None:
    nowhere = (
        model("x", direct(ProviderKind.OPENAI_COMPATIBLE)),
        model("x", direct(ProviderKind.LOCAL)),
        model("claude-x", direct(ProviderKind.CLOUDFLARE)),
        model("whose", GATEWAY),
    )
    for settings in nowhere:
        with pytest.raises(InvalidInput):
            route_of(settings)


def test_a_provider_that_moves_to_another_origin_leaves_its_keys_behind() -> None:
    here = direct(ProviderKind.OPENAI_COMPATIBLE, base_url="https://a.example/v1")
    assert here.moved("https://a.example/v2").credential == "key"
    assert here.moved("https://b.example/v1").credential is None
    assert here.moved(None).credential is None


def test_parameters_lie_over_each_other() -> None:
    made = ModelSettings(
        id="m",
        name="m",
        provider=GATEWAY,
        parameters=ModelParameters(temperature=0.7, max_tokens=4000, top_p=0.9),
        situations={"coding": ModelParameters(temperature=0, max_tokens=8000)},
    )
    assert made.in_situation("coding").given() == {"temperature": 0, "max_tokens": 8000, "top_p": 0.9}
    assert made.in_situation("coding", ModelParameters(max_tokens=5)).given()["max_tokens"] == 5
    assert made.in_situation(None).given()["max_tokens"] == 4000


def test_an_embedded_model_is_asked_with_a_narrow_choice_of_words_unless_somebody_says_otherwise() -> None:
    plain = model("x", direct(ProviderKind.LOCAL))
    assert plain.in_situation(None).given() == {"temperature": 0.3, "min_p": 0.15, "top_p": 1.0}
    assert plain.in_situation(None, ModelParameters(temperature=0.9, seed=1)).given() == {
        "temperature": 0.9, "min_p": 0.15, "top_p": 1.0, "seed": 1,
    }  # fmt: skip
    assert model("x", direct(ProviderKind.OPENAI)).in_situation(None).given() == {}


@pytest.mark.parametrize(
    ("cores", "load", "threads"), [(8, 0.4, 8), (2, 0.0, 2), (2, 1.2, 1), (2, 7.9, 1), (8, 3.0, 5)]
)
def test_the_embedded_model_computes_on_every_core_that_is_not_busy(cores: int, load: float, threads: int) -> None:
    assert thread_count(cores, load) == threads


def limited(retry_after: float | None) -> RateLimited:
    error = RateLimited("x")
    error.retry_after = retry_after
    return error


POLICY = RetryPolicy()


@given(st.integers(1, 9), st.floats(0, 1), st.none() | st.floats(0, 300), st.none() | st.floats(0, 100), st.booleans())
def test_a_wait_keeps_to_every_bound(
    tries: int, fraction: float, retry_after: float | None, left: float | None, has_fallback: bool
) -> None:
    step = next_step(
        limited(retry_after), tries, POLICY, fraction=fraction, seconds_left=left, has_fallback=has_fallback
    )
    if isinstance(step, AskAgain):
        assert tries < POLICY.attempts
        assert left is None or step.wait < left
        assert step.wait == retry_after if retry_after is not None else 0 < step.wait <= POLICY.longest_wait
    else:
        assert isinstance(step, NextModel if has_fallback else GiveUp)


def test_only_the_providers_failures_are_tried_again() -> None:
    for error, again in ((ProviderFailed("x"), True), (RequestRefused("x"), False), (InvalidInput("x"), False)):
        step = next_step(error, 1, POLICY, fraction=0, seconds_left=None, has_fallback=True)
        assert isinstance(step, AskAgain) is again
        assert isinstance(step, GiveUp) is not again


PRICE = TokenPrice(input=3_000_000, output=15_000_000, cached=300_000, cache_write=3_750_000)


def test_a_reply_costs_what_its_tokens_cost() -> None:
    usage = Usage(input_tokens=1000, output_tokens=100, cached_input_tokens=10_000, cache_write_tokens=400)
    assert cost_of(usage, PRICE) == 3000 + 1500 + 3000 + 1500
    assert cost_of(Usage(output_tokens=1), PRICE) == 15
    assert cost_of(Usage(input_tokens=1, cached_input_tokens=1), TokenPrice(input=1, output=1)) is None
    assert cost_of(Usage(cache_write_tokens=6, cache_write_1h_tokens=2), PRICE) == 4 * 3.75 + 2 * 6
    assert cost_of(None, PRICE) is None
    assert cost_of(usage, None) is None


def test_money_bounds_the_output_that_is_asked_for() -> None:
    budget = RequestBudget(money=15_000)
    assert budget.within(ModelParameters(), PRICE, 0, "m").max_tokens == 1000
    assert budget.within(ModelParameters(max_tokens=10), PRICE, 0, "m").max_tokens == 10
    budget.pay(14_700)
    assert budget.within(ModelParameters(max_tokens=900), PRICE, 0, "m").max_tokens == 20
    budget.pay(200)
    with pytest.raises(BudgetSpent, match="pays for no reply"):
        budget.within(ModelParameters(), PRICE, 0, "m")


def test_a_long_prompt_counts_before_it_is_sent() -> None:
    with pytest.raises(BudgetSpent):
        RequestBudget(money=1000).within(ModelParameters(), PRICE, 10_000, "m")


def test_what_cannot_be_priced_cannot_be_kept_within_a_budget() -> None:
    for price in (None, TokenPrice(input=1)):
        with pytest.raises(BudgetSpent, match="has no price"):
            RequestBudget(money=1000).within(ModelParameters(), price, 0, "m")
    budget = RequestBudget(money=1000)
    budget.pay(None)
    with pytest.raises(BudgetSpent, match="nobody knows"):
        budget.within(ModelParameters(), PRICE, 0, "m")
    assert RequestBudget().within(ModelParameters(), None, 0, "m") == ModelParameters()


@pytest.mark.parametrize("given", [{"seconds": 0}, {"money": -1}])
def test_a_budget_of_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        RequestBudget(**given)
