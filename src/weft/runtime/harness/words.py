"""What is said in an agent's work: to it after a failure and where it goes on, and to people about its budget."""

from __future__ import annotations

from weft.runtime.harness.facts import WorkFacts
from weft.runtime.harness.settings import MICRODOLLARS
from weft.runtime.invoke.task_messages import resumed_brief, task_brief


def failure_words(text: str, error: str) -> str:
    """The message whose turn failed, once more: the session holds nothing of that turn."""
    return f"{text}\n\nAn earlier try of this ended with an error: {error}\nGo on in another way if that can help."


def resumption_words(facts: WorkFacts) -> str:
    """The task itself, what the checkpoint says comes next, or that it goes on."""
    if facts.head is None:
        return task_brief(facts.task)
    saved = facts.checkpoint if isinstance(facts.checkpoint, dict) else {}
    text = saved.get("next")
    return text if saved.get("head") == facts.head and isinstance(text, str) else resumed_brief(facts.task)


def budget_words(facts: WorkFacts) -> str | None:
    """Which limit of the harness leaves no further turn, and what is still missing; None where there is one."""
    settings, spent = facts.settings, facts.spent
    words = None
    if len(facts.rounds) >= settings.max_turns:
        words = f"budget: {settings.max_turns} turn{' was' if settings.max_turns == 1 else 's were'} not enough"
    elif settings.max_tokens is not None and spent.total >= settings.max_tokens:
        words = f"budget: {spent.total} of {settings.max_tokens} tokens are spent"
    elif settings.max_seconds is not None and facts.seconds >= settings.max_seconds:
        words = f"budget: {facts.seconds:.0f} of {settings.max_seconds} seconds are spent"
    elif settings.max_cost is not None and spent.unpriced:
        words = "budget: nobody knows what the turns cost, for a model of theirs has no price"
    elif settings.max_cost is not None and (spent.cost or 0) >= settings.max_cost:
        words = f"budget: {_dollars(spent.cost or 0)} of {_dollars(settings.max_cost)} are spent"
    if words is None:
        return None
    last = facts.last
    unmet = [] if last is None else [*facts.unmet(last.verdicts), *last.failed_calls]
    return f"{words}: {'; '.join(unmet)}" if unmet else words


def _dollars(cost: int) -> str:
    return f"${cost / MICRODOLLARS:.4f}"
