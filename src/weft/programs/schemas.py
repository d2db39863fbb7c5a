"""JSON Schema, checked by jsonschema-rs, which is loaded when it is first needed. Schemas reach nothing outside."""

from __future__ import annotations

from typing import Any

from weft.kernel.errors import InvalidConfig

SHOWN = 20


def problems_with(value: Any, schema: Any, path: str = "schema") -> list[str]:
    """Where and why a value does not fit; empty where it does. A schema that is none is refused."""
    validator = _validator(schema, path)
    found = []
    for error in validator.iter_errors(value):
        where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path)
        found.append(f"${where}: {error.message:.200}")
        if len(found) == SHOWN:
            break
    return found


def check_schema(schema: Any, path: str = "schema") -> None:
    _validator(schema, path)


def _validator(schema: Any, path: str) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema, retriever=_refuse)
    except (ValueError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidConfig(path, f"is no JSON Schema: {reason:.200}", "see json-schema.org") from error


def _refuse(uri: str) -> Any:
    raise InvalidConfig("$ref", f"{uri} lies outside of the schema and is not fetched", "put what it names into $defs")
