"""How much a request may take: time over all its tries, and money over all requests that share the budget.

Money is kept by asking for no more output than it can pay for. What a failed try has cost, nobody says; a reply whose
usage is not known counts as unknown, and the next request of that budget is refused rather than guessed at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from weft.kernel.errors import BudgetSpent, InvalidInput
from weft.kernel.events import Usage
from weft.ledger.api import EMBEDDED_PROVIDER, FREE, Price, PriceTable, shipped_prices
from weft.runtime.inference.replies import Reply
from weft.runtime.inference.settings import ModelSettings, Parameters, ProviderKind

MILLION = 1_000_000
_FEWEST = 16


class Budget:
    """`seconds` hold for one request; `money`, in micro-dollars, for all requests that are given this object.
    `read_spent` tells what everybody has spent of the money who shares it, in other turns or processes: it is read
    before each request, so that each of them goes beyond the money by one request at most."""

    def __init__(
        self,
        *,
        seconds: float | None = None,
        money: int | None = None,
        read_spent: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        if (seconds is not None and seconds <= 0) or (money is not None and money < 0):
            raise InvalidInput("a budget of nothing", "give it some seconds, or some micro-dollars")
        self.seconds, self.money = seconds, money
        self._read_spent = read_spent
        self.spent = 0
        self.unknown = 0

    async def refresh(self) -> None:
        """Learn what others have spent meanwhile."""
        if self._read_spent is not None:
            self.spent = max(self.spent, await self._read_spent())

    def within(self, parameters: Parameters, price: Price | None, prompt: int, model: str) -> Parameters:
        """The parameters, asking for no more output than there is money for after a prompt of so many tokens."""
        if self.money is None:
            return parameters
        if self.unknown:
            raise BudgetSpent("the last reply did not say what it used, so nobody knows what is left")
        input_price, output_price = token_prices(price, model)
        left = (self.money - self.spent) * MILLION - prompt * input_price
        affordable = left // output_price if output_price else None
        if left <= 0 or (affordable is not None and affordable < _FEWEST):
            raise BudgetSpent(f"{self.spent} of {self.money} micro-dollars are spent, and the rest pays for no reply")
        if affordable is None or (parameters.max_tokens is not UNSET and parameters.max_tokens <= affordable):
            return parameters
        return Parameters(max_tokens=affordable).over(parameters)

    def pay(self, cost: int | None) -> None:
        if cost is None:
            self.unknown += 1
        else:
            self.spent += cost


def token_prices(price: Price | None, model: str) -> tuple[int, int]:
    """What a million tokens of a prompt and of an answer cost. Raises BudgetSpent where the model has no price."""
    if price is None or price.input is None or price.output is None:
        raise BudgetSpent(f"model {model!r} has no price, so a budget of money cannot be kept", "give it a price")
    return price.input, price.output


def model_price(
    model: ModelSettings, at_ms: int, prompt: int = 0, *, name: str | None = None, prices: PriceTable | None = None
) -> Price | None:
    """Of a request of so many tokens to a model, which may answer under another name; the embedded model costs nothing.
    The shipped table is loaded when it is needed."""
    if model.provider.kind is ProviderKind.LOCAL:
        return FREE
    return (prices or shipped_prices()).price(name or model.name, at_ms, prompt)


def ensure_priced(model: ModelSettings, at_ms: int) -> None:
    """Refuse a budget of money for a model without a price, or with such a fallback. Raises BudgetSpent."""
    for one in (model, *model.fallbacks):
        token_prices(model_price(one, at_ms), one.id)


def cost_of(usage: Usage | None, price: Price | None) -> int | None:
    """Micro-dollars, rounded up; None where a used kind of token has no price."""
    if usage is None or price is None:
        return None
    counts = (
        (usage.input_tokens, price.input),
        (usage.output_tokens, price.output),
        (usage.cached_input_tokens, price.cached),
        ((usage.cache_write_tokens or 0) - (usage.cache_write_1h_tokens or 0), price.cache_write),
        (usage.cache_write_1h_tokens, price.of("cache_write_1h")),
    )
    total = 0
    for count, each in counts:
        if count is UNSET or not count:
            continue
        if each is None:
            return None
        total += count * each
    return -(-total // MILLION)


def recorded_cost(reply: Reply, at_ms: int) -> int | None:
    """Of a reply that was read back from the ledger, with the prices that are shipped, in micro-dollars."""
    if reply.usage is None:
        return None
    is_free = reply.provider == EMBEDDED_PROVIDER
    price = FREE if is_free else shipped_prices().price(reply.model, at_ms, prompt_tokens(reply.usage))
    return cost_of(reply.usage, price)


def prompt_tokens(usage: Usage | None) -> int:
    """How many tokens a request carried; beyond some length a model may cost more."""
    parts = () if usage is None else (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens)
    return sum(part for part in parts if part is not UNSET)
