"""A delivery of a webhook to a trigger: checked against its secret, then fired for once."""

from __future__ import annotations

from weft.kernel.enums import MessageSource
from weft.kernel.errors import NotApplicable
from weft.ledger.api import FiringOutcome, Occasion
from weft.programs.placeholders import Resolver, resolve_config
from weft.runtime.triggers.sender import TriggerSender, occasion_digest
from weft.runtime.triggers.webhooks import WebhookDelivery, verified


def deliver(sender: TriggerSender, name: str, delivery: WebhookDelivery, variable: Resolver) -> FiringOutcome:
    """Fire for a signed delivery. The same one again, however it is encoded and in whatever order it comes, gives the
    same answer and changes nothing. One that is not signed, or not lately, leaves nothing behind. Raises what goes
    wrong otherwise: whoever delivers it tries again."""
    trigger = sender.require(name)
    kind, setting = trigger.occasion
    if kind != "webhook":
        raise NotApplicable(f"trigger {trigger.program.name!r} waits for no webhook", "deliver to one that does")
    secret = resolve_config(setting["secret"], variable, f"trigger {trigger.program.name!r}")
    signed = verified(setting, delivery, secret, sender.clock.now_ms())
    occasion = Occasion(
        digest=occasion_digest("webhook", signed.occasion), source=MessageSource.WEBHOOK, payload=signed.payload
    )
    return sender.fire(trigger, occasion, raises=True)
