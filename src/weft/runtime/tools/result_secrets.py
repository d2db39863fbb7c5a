"""Secrets in results of tools: a model is sent a mark in the place of each.

The rules look at a result before it is recorded. Where they find something, the words that models are sent in its place
are recorded with the result, and the rules that made them: every request of every session that tells this result sends
these words, whatever the rules are by then. The result itself is recorded as it came.

It is no boundary. An agent can have a secret written backwards, and what no rule knows is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from weft.ledger.model import SentResult
from weft.runtime.inference.shown_results import IMAGES, count_result_images, with_images
from weft.runtime.tools.threads import in_thread

if TYPE_CHECKING:
    from weft.ledger.secrets import KnownSecrets

SHORTEST_RESULT = 16
"""Characters; a shorter one holds no secret that a rule knows, and loads no rules."""
NO_RULES = "none"
"""Recorded where no rules could be asked."""
Ignored = Callable[[Sequence[str]], Collection[str]]
"""Which of some credentials a person said are none: they are sent."""


class ResultSecrets:
    """Takes secrets out of results, and remembers them while the process lives: one that a rule knew by the words
    around it is also taken out where it stands alone."""

    def __init__(self) -> None:
        self._known: KnownSecrets | None = None
        self._loading = Lock()

    async def sent_instead(self, result: Any, folder: Path | None, ignored: Ignored) -> SentResult | None:
        """What is sent in the place of a recordable result; None where that is sent itself. `folder` is where compiled
        rules are kept."""
        fields, images = result, None
        if count_result_images(result):
            fields = {name: value for name, value in result.items() if name != IMAGES}
            images = result[IMAGES]
        if _characters(fields) < SHORTEST_RESULT:
            return None
        sent = await in_thread(partial(self._marked, fields, folder, ignored))
        return sent if sent is None or images is None else SentResult(with_images(sent.value, images), sent.rules)

    def _marked(self, result: Any, folder: Path | None, ignored: Ignored) -> SentResult | None:
        # loaded for the first result, not for each message
        from weft.ledger.secrets import KnownSecrets, load_rules, mark_secrets

        with self._loading:  # once; whoever has a long result keeps nobody else waiting
            rules = load_rules(folder)
            self._known = known = KnownSecrets() if self._known is None else self._known
        return mark_secrets(result, rules, known, ignored)


def unchecked(error: Exception) -> SentResult:
    """What is sent of a result that could not be looked through."""
    why = f"it could not be looked through for secrets, {type(error).__name__}"
    return SentResult(f"[this result is left out: {why}]", NO_RULES)


def _characters(value: Any) -> int:
    """How many there are in a result, in its texts and in the names of its fields."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _characters(item) for name, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 0
