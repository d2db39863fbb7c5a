"""Triggers of every kind with something to fire for, and a process that is killed while they do."""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path

from tests.faults.processes import Say
from tests.faults.tripwires import Tripwire, watch_disk, watch_statements
from tests.runtime.triggering import HOUR_MS, NOON, TriggerWorld, open_world
from weft.runtime.invoke.trigger_firing import WebhookDelivery, deliver

START = NOON + 4 * HOUR_MS
"""Three times of an hourly schedule were missed, and one is due."""
LOOK_MS = 3000
LOOKS = 4
BODY = b'{"id": 7}'
SIGNATURE = hmac.new(b"key", BODY, sha256).hexdigest()


def create_triggers(world: TriggerWorld, folder: Path) -> None:
    """One for each thing that sets triggers off, each with something to fire for."""
    hourly = {"cron": "0 * * * *"}
    world.programs.create("agent", "writer", {"soul": "You write."})
    world.ledger.rooms.create("team", agents=["writer"])
    world.create("all", on=hourly, message="${time}", to={"session": "all"}, onMissed="all")
    world.create("latest", on=hourly, message="${time}", to={"session": "latest"}, onMissed="latest")
    world.create("report", on=hourly, message="${time}", to={"session": "report"})
    world.create("fails", on=hourly, message="x", to={"session": "x", "persona": "nobody"}, onMissed="all", breaker=99)
    world.create("room", on=hourly, message="posted", to={"room": "team", "persona": "writer"})
    finished = {"event": {"kind": "run_finished", "filter": {"session": "notes"}}}
    world.create("event", on=finished, message="${payload.turn}", to={"session": "event"})
    world.create("file", on={"file": {"folder": str(folder)}}, message="${payload.changes}", to={"session": "file"})
    webhook = {"scheme": "github", "secret": "${KEY}"}
    world.create("webhook", on={"webhook": webhook}, message="${payload.id}", to={"session": "webhook"})
    world.job().run(NOON)
    for text in ("one", "two"):
        world.record(text, "notes")
    (folder / "new.py").write_text("x")


def fire_all(world: TriggerWorld) -> None:
    job = world.job()
    for look in range(LOOKS):
        job.run(world.at(START + look * LOOK_MS))
    delivery = WebhookDelivery({"x-hub-signature-256": f"sha256={SIGNATURE}"}, BODY)
    deliver(world.sender(), "webhook", delivery, lambda name: "key")


def die_while_firing(say: Say, path: str, k: int, is_at_statements: bool) -> None:
    """Fire all that is due; killed at the k-th step of it."""
    tripwire = Tripwire(k, torn=not is_at_statements)
    vfs = None if is_at_statements else watch_disk(tripwire)
    if is_at_statements:
        watch_statements(tripwire)
    world = open_world(path)
    tripwire.armed = True
    fire_all(world)
    tripwire.disarm(say)
    world.ledger.close()
    if vfs is not None:
        vfs.unregister()
