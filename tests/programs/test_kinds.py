"""The table of kinds: all eight are in it, and a ninth is one row. Nothing generic asks which kind a program is."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Union

import msgspec
import pytest

import weft
from tests.ledger.histories import problems
from tests.runtime.invoking import Bench, run
from weft.kernel.enums import ProgramKind, ReferenceField
from weft.kernel.errors import IllegalTransition, InvalidConfig, LabelTaken, NotApplicable, NotFound
from weft.kernel.foreign_input import KINDS as EVENTS
from weft.kernel.program_events import CODE as CODE_FACTS
from weft.kernel.program_events import PROGRAM_KINDS, ConfiguredEvent, Created, KindFacts
from weft.ledger.api.ledger import Ledger
from weft.ledger.views import programs as program_views
from weft.ledger.views.projector import OTHERS
from weft.programs import Programs, program_kinds
from weft.programs.config_fields import NOTHING, count, reference, text
from weft.programs.kind_table import KINDS, ROWS
from weft.programs.program_changes import read_text
from weft.programs.program_kinds import KindRow, ReferenceRule
from weft.programs.program_records import Program
from weft.runtime.invoke.handlers import HANDLERS
from weft.runtime.invoke.invocation import Invocation, InvocationContext, InvocationResult

SOURCE = Path(weft.__file__).parent


class ToyCreated(Created, frozen=True, gc=False, kw_only=True, tag="toy_created"):
    about: ClassVar[str] = "A toy got an id, a name and a configuration."


class ToyConfigured(ConfiguredEvent, frozen=True, gc=False, kw_only=True, tag="toy_configured"):
    about: ClassVar[str] = "A toy got another configuration."


TOY = KindRow(
    facts=KindFacts(
        name="toy",
        created=ToyCreated,
        configured=ToyConfigured,
        first_state="draft",
        verbs=CODE_FACTS.verbs,
        steps=CODE_FACTS.steps,
    ),
    required=("wheels",),
    fields={"wheels": count, "maker": reference, "colour": text},
    machine=dict.fromkeys(("wheels", "maker", "colour"), NOTHING),
    references={"maker": ReferenceRule(ReferenceField.OWNER, (ProgramKind.HUMAN,))},
    file_states=program_kinds.FILE_STATES,
    state_in_use=program_kinds.STATE_IN_USE,
    steps=program_kinds.PUBLISHING_STEPS,
    ended_states=program_kinds.ENDED_STATES,
)


async def invoke_toy(context: InvocationContext, program: Program, invocation: Invocation) -> InvocationResult:
    moved = program.config["wheels"] * len(invocation.message)
    return InvocationResult(program=program.name, kind=program.kind, result={"moved": moved})


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A ninth kind: its two events, and its row in the table of each layer."""
    events = {"toy_created": ToyCreated, "toy_configured": ToyConfigured}
    for tag, event in events.items():
        monkeypatch.setitem(EVENTS.kinds, tag, event)
    decoder = msgspec.json.Decoder(Union[tuple(EVENTS.kinds.values())])  # noqa: UP007
    monkeypatch.setitem(vars(EVENTS), "_any_decoder", decoder.decode)  # that of many lines, made before or not
    monkeypatch.setattr(EVENTS, "_kind_decoders", {})
    monkeypatch.setitem(PROGRAM_KINDS, "toy", TOY.facts)
    monkeypatch.setitem(KINDS, "toy", TOY)
    monkeypatch.setitem(HANDLERS, "toy", invoke_toy)
    program_views.handle_kind(TOY.facts)
    yield
    for event in events.values():
        del OTHERS[event]


def test_every_layer_has_a_row_for_every_kind() -> None:
    assert [kind.name for kind in ROWS] == list(ProgramKind) == list(PROGRAM_KINDS) == list(KINDS)
    assert set(HANDLERS) == set(KINDS)
    assert all(kind.facts is PROGRAM_KINDS[kind.name] for kind in ROWS)


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.name)
def test_the_columns_of_a_row_fit_together(kind: KindRow) -> None:
    assert set(kind.required) | set(kind.references) <= set(kind.fields) | {"content"}
    assert all(name in KINDS for rule in kind.references.values() for name in rule.kinds)
    targets = {state for targets in kind.facts.verbs.values() for state in targets.values()}
    states = {kind.facts.first_state, *targets}
    assert set(kind.facts.steps) <= set(kind.facts.verbs)
    assert {*kind.file_states, *kind.steps, *kind.ended_states} <= states
    assert kind.state_in_use is None or kind.state_in_use in kind.file_states


def test_nothing_but_the_rows_compares_kinds() -> None:
    compares = re.compile(r"(?:\bis|\bis not|==|!=|\bin) \(?ProgramKind\.|ProgramKind\.\w+\s*:|ProgramKind\(")
    generic = [path for path in (SOURCE / "programs").rglob("*.py") if path.parent.name != "kinds"]
    assert generic
    assert [path.name for path in generic if compares.search(path.read_text())] == []


@pytest.mark.usefixtures("toys")
def test_a_ninth_kind_is_created_configured_listed_shown_and_deleted(ledger: Ledger) -> None:
    programs = Programs(ledger)
    programs.create("human", "ann", {})
    programs.create("toy", "car", {"wheels": 4, "maker": "ann", "colour": "red"})
    car = programs.get("@(car)", "toy")
    assert (car.kind, car.state, car.version) == ("toy", "published", 1)
    assert car.config == {"wheels": 4, "maker": "@(ann)", "colour": "red"}
    assert car.shape()["lifecycle"] == "published"
    assert programs.change("car", {"wheels": 3}, reason="one lost").version == 2
    assert [(one.kind, one.reason) for one in programs.history("car")][:2] == [
        ("toy_configured", "one lost"),
        ("program_published", None),
    ]
    assert programs.revert("car", 1).config["wheels"] == 4
    assert [one.name for one in programs.all("toy")] == ["car"]
    with pytest.raises(NotApplicable):
        programs.delete("ann")  # the toy names her
    before = [(one, programs.history(one.name)) for one in programs.all()]
    assert ledger.upkeep.rebuild() == 0
    assert [(one, programs.history(one.name)) for one in programs.all()] == before
    assert programs.delete("car").state == "deprecated"
    with pytest.raises(NotFound):
        programs.get("car")
    assert programs.all("toy") == []
    assert problems(ledger) == []


@pytest.mark.usefixtures("toys")
def test_a_ninth_kind_is_refused_where_its_row_says_so(disk: Ledger) -> None:
    programs = Programs(disk)
    programs.create("code", "car-code", {"source": "1"})
    for config in ({}, {"wheels": 0}, {"wheels": 4, "maker": "car-code"}, {"wheels": 4, "maker": "nobody"}):
        with pytest.raises(InvalidConfig):
            programs.create("toy", "car", config)
    with pytest.raises(LabelTaken):
        programs.create("toy", "car-code", {"wheels": 4})
    programs.create("toy", "car", {"wheels": 4}, draft=True)
    with pytest.raises(IllegalTransition, match="toy 'car' is draft"):
        programs.deprecate("car")


@pytest.mark.usefixtures("toys")
def test_a_ninth_kind_is_applied_from_a_file(disk: Ledger) -> None:
    programs = Programs(disk)
    entry = "{id: car, programType: toy, config: {wheels: %d}, tags: [red], lifecycle: %s}"
    applied = programs.apply(read_text(entry % (4, "draft"), "here"))
    assert [(one.action, one.kind, one.name) for one in applied] == [("create", "toy", "car")]
    (changed,) = programs.apply(read_text(entry % (3, "published"), "here"))
    assert (changed.action, changed.changes) == ("change", ["wheels", "lifecycle"])
    assert programs.get("car").state == "published"
    (pruned,) = programs.apply([], prune=True)
    assert (pruned.action, pruned.name) == ("delete", "car")


@pytest.mark.usefixtures("toys")
def test_a_ninth_kind_is_invoked(tmp_path: Path) -> None:
    async def body(bench: Bench) -> None:
        await asyncio.to_thread(bench.programs.create, "toy", "car", {"wheels": 4})
        moved = await bench.invoke("car", "vroom")
        assert (moved.kind, moved.result) == ("toy", {"moved": 20})

    run(tmp_path / "ledger.db", body)
