"""The JSON forms: one for every record that a public verb returns, in one spelling, as docs/json.md lists them."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import orjson
import pytest
from msgspec import UNSET, Struct

import weft
from scripts.field_notes import COLUMNS, SQL_PAGE, TABLES, field_notes
from scripts.generate_json_docs import PAGE, json_page
from tests.surfaces.shell import Shell
from tests.test_public_names import LOADED_LATER
from weft.kernel.authority import Authority
from weft.kernel.errors import Action
from weft.kernel.events import Event, UnknownEvent
from weft.ledger import model
from weft.ledger.api.base import LedgerPart
from weft.ledger.api.ledger import Ledger
from weft.ledger.resource_changes import BusyResource, UndoneMove
from weft.ledger.resource_reading import KeptReference
from weft.ledger.views.rows import Lease
from weft.programs import Programs
from weft.programs.similarity import Similarity
from weft.store.port import DiagnosisSeverity, error
from weft.surfaces.wire import catalogue, forms
from weft.surfaces.wire.forms import document, form
from weft.verbs.answers import BlamedLine, JsonValue, ListedTurn, Verification
from weft.verbs.exchange_answers import KeyForm

RECORDS: set[type[Struct]] = {record for family in catalogue.records().values() for record in family}
PARTS = sorted(LedgerPart.__subclasses__(), key=lambda part: part.__name__)
OWNERS: list[type] = [Ledger, *PARTS, Programs, Similarity]
SORTED = sorted(RECORDS, key=catalogue.title)
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NOT_ANSWERED = {
    Lease: "its holder passes it back",
    BusyResource: "who acts on a resource, for whoever would",
    Authority: "who acts, which is passed on and never answered",
    KeptReference: "for whoever looks for kept files",
    UndoneMove: "whoever takes it back passes it on",
}


def returned(owner: type) -> Iterator[tuple[str, type[Struct]]]:
    """Every record that a public verb of a class returns, with the verb."""
    for name, verb in inspect.getmembers(owner):
        function = verb.fget if isinstance(verb, property) else verb
        if not name.startswith("_") and inspect.isfunction(function):
            annotation = get_type_hints(function, localns=LOADED_LATER).get("return")
            yield from ((f"{owner.__name__}.{name}", record) for record in records_in(annotation))


def records_in(annotation: Any) -> Iterator[type[Struct]]:
    is_record = isinstance(annotation, type) and issubclass(annotation, Struct)
    if is_record and not issubclass(annotation, Event | UnknownEvent):
        yield annotation
    for part in get_args(annotation):
        yield from records_in(part)


@pytest.mark.parametrize("owner", OWNERS)
def test_every_record_that_a_public_verb_returns_has_a_form(owner: type) -> None:
    verbs = list(returned(owner))
    assert [(verb, record) for verb, record in verbs if record not in RECORDS and record not in NOT_ANSWERED] == []


@pytest.mark.parametrize("record", SORTED)
def test_every_key_is_snake_case_but_for_the_forms_of_seed_5(record: type[Struct]) -> None:
    odd = [key for key in catalogue.keys(record) if not SNAKE.fullmatch(key) and key != "…"]
    assert odd == [] or record.__name__ in catalogue.SEED_5


def test_the_public_verbs_are_read() -> None:
    assert len(OWNERS) > 15
    assert len({record for owner in OWNERS for _, record in returned(owner)}) > 40


def test_a_record_stands_in_one_family() -> None:
    listed = [record for family in catalogue.records().values() for record in family]
    assert len(listed) == len(set(listed))
    titles = [catalogue.title(record) for record in listed]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("table", [forms.FLAT, forms.HIDDEN, forms.OWN, forms.BEYOND_FIELDS, catalogue.SEED_5])
def test_the_tables_of_exceptions_name_records(table: dict[str, Any]) -> None:
    assert table.keys() <= {record.__name__ for record in RECORDS}


def test_what_is_spread_into_a_record_is_a_field_of_it_and_hides_no_other() -> None:
    by_name = {record.__name__: record for record in RECORDS}
    for name, field in forms.FLAT.items():
        fields = catalogue.field_types(by_name[name])
        assert field in fields
        for part in catalogue.records_in(fields[field]):
            assert not (catalogue.keys(part).keys() & (fields.keys() - {field})), (name, part)


@pytest.mark.slow("reads the notes of every record off the source")
def test_the_page_lists_every_form() -> None:
    assert PAGE.read_text() == json_page()


def test_keys_are_explained_by_what_stands_below_them_or_by_the_same_column() -> None:
    session, call = field_notes(model.Session), field_notes(model.ToolCall)
    assert session["time_known"].startswith("false: it was imported")
    assert session["head"] == "The turn its head stands at; null before the first turn and after a reset."
    assert call["outcome"].endswith("null while it runs.")
    assert "content" not in field_notes(model.Message), "it is a list of parts here, and text in SQL"


def test_every_column_that_explains_a_key_is_one_of_its_table() -> None:
    page = SQL_PAGE.read_text()
    for record, columns in COLUMNS.items():
        section = page.partition(f"\n## `{TABLES[record]}`\n")[2].partition("\n## ")[0]
        for column in filter(None, columns.values()):
            assert f"| `{column}` |" in section, (record, column)


def test_only_this_package_makes_forms() -> None:
    """Commands answer with records; mypy holds `Call.answer`, `document` and `documents` to that."""
    commands = Path(inspect.getfile(weft)).parent / "surfaces" / "cli"
    makers = re.compile(r"\b(to_json|asdict|to_builtins|iso_from_ms)\b")
    assert [file.name for file in commands.rglob("*.py") if makers.search(file.read_text())] == []


def test_times_become_iso_and_unset_fields_are_left_out() -> None:
    line = form(BlamedLine(line=1, text="x", started_at=1_000))
    assert line == {
        "line": 1, "text": "x", "turn_id": None, "call_id": None, "started_at": "1970-01-01T00:00:01.000Z",
    }  # fmt: skip
    assert form(KeyForm(name="ann", key="00", own=UNSET)) == {"name": "ann", "key": "00"}


def test_a_part_that_is_spread_stands_among_the_others() -> None:
    with weft.open(":memory:") as ledger:
        turn = ledger.turn(ledger.record_turn(session="main", query="hello").id)
    listed = form(ListedTurn(turn=turn, subject="hello", heads=["main"]))
    assert listed == {**form(turn), "subject": "hello", "heads": ["main"]}
    assert listed["id"] == turn.id


def test_stored_values_stay_as_they_are() -> None:
    stored = {"createdAt": 1, "list": [{"x": (1, 2)}]}
    assert form(JsonValue(stored)) is stored


def test_a_finding_says_its_action_beside_the_sentence() -> None:
    finding = form(error("views", "wrong", "answers are wrong", Action.REBUILD_VIEWS))
    assert finding == {
        "grade": DiagnosisSeverity.ERROR,
        "check": "views",
        "what": "wrong",
        "why": "answers are wrong",
        "mend": "weft rebuild",
        "action": "rebuild_views",
        "arguments": {},
    }


def test_lists_of_records_are_forms_too() -> None:
    assert form(Verification(ok=True, problems=[])) == {"ok": True, "problems": []}
    assert orjson.loads(document(form([KeyForm(name="a", key="1")]))) == [{"name": "a", "key": "1"}]


def test_the_version_of_the_forms_is_told(weft: Shell) -> None:
    assert weft.json("--version")["wire_version"] == forms.WIRE_VERSION


def test_an_error_says_its_action_and_arguments(weft: Shell) -> None:
    refused = weft("show", "nobody", "--json").error
    assert (refused["action"], refused["arguments"]) == ("list_history", {})
    wrong = weft("show", "--nonsense", "--json").error
    assert (wrong["action"], wrong["arguments"]) == ("read_help", {"command": "weft show"})
