"""The OpenAPI 3.1 description of every route. Schemas of requests are msgspec's own. Those of answers follow the JSON
forms of records, which differ from their fields: some are flattened, times are texts, a few have forms of their own.
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Mapping
from enum import Enum
from importlib.metadata import version
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, UnsetType

from weft.kernel.events import Event, UnknownEvent
from weft.surfaces.server.problems import MEDIA_TYPE
from weft.surfaces.server.route_table import (
    RETRY_HEADER,
    RETRY_PARAMETER,
    ROUTES,
    Endpoint,
    EndpointDetails,
    Route,
    alternatives,
)
from weft.surfaces.server.verb_requests import VerbRequests
from weft.surfaces.wire.catalogue import NAMES, SEED_5, records_in, title
from weft.surfaces.wire.forms import BEYOND_FIELDS, FLAT, HIDDEN, is_time
from weft.verbs.answers import Answer, Listing
from weft.verbs.declaration import names_for_types

if TYPE_CHECKING:
    from collections.abc import Iterable


REF = "#/components/schemas/{name}"
Schema = dict[str, Any]


def description(endpoints: Iterable[Endpoint] = ()) -> Schema:
    """The whole document: of all routes, and of those of the endpoints that say what they are."""
    operations, schemas = [_Operation(route) for route in ROUTES], AnswerSchemas()
    _, requests = msgspec.json.schema_components([one.request for one in operations], ref_template=REF)
    paths: dict[str, Any] = {}
    for one in operations:
        described = one.described(requests.pop(one.request.__name__), schemas)
        paths.setdefault(one.route.full_path, {})[one.route.method.lower()] = described
    for endpoint in endpoints:
        if endpoint.details is not None:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _endpoint_operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Weft", "version": version("weft"), "description": "Version control for AI agents."},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**requests, **schemas.components, "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_PROBLEM: Schema = {
    "type": "object",
    "description": "What went wrong (RFC 9457). `code` and `action` stay, whatever the words are.",
    "required": ["type", "title", "status", "detail", "code", "hint"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "hint": {"type": "string"},
        "action": {"type": "string"},
        "arguments": {"type": "object"},
        "facts": {"type": "object"},
    },
}


class _Operation:
    """One route as OpenAPI tells it."""

    def __init__(self, route: Route) -> None:
        self.route, self._verb = route, route.verb
        self.request = VerbRequests(route).request_type

    def described(self, request: Schema, schemas: AnswerSchemas) -> Schema:
        fields, required = request["properties"], request.get("required", [])
        names = self.route.path_names
        parameters = [
            {"name": name, "in": "path", "required": True, **_parameter(_one(fields[name]), minimum=1)}
            for name in names
        ]
        beside = [name for name in fields if name not in names]
        told: Schema = {
            "operationId": self.route.name,
            "summary": self._verb.summary,
            "description": self._verb.help,
            "tags": [self.route.tag],
            "parameters": parameters,
            "responses": self._responses(schemas),
            "x-right": self.route.right,
        }
        if self.route.method == "GET":
            parameters += [
                {"name": name, "in": "query", "required": name in required, **_parameter(fields[name])}
                for name in beside
            ]
            return told
        body = {
            "type": "object",
            "properties": {name: fields[name] for name in beside},
            "required": [name for name in required if name in beside],
            "additionalProperties": False,
        }
        told["requestBody"] = {"required": bool(body["required"]), "content": {"application/json": {"schema": body}}}
        if RETRY_PARAMETER in fields:
            described = "A retry with the same key has no further effect."
            schema = {"type": "string", "minLength": 1}
            parameters.append({"name": RETRY_HEADER, "in": "header", "description": described, "schema": schema})
        return told

    def _responses(self, schemas: AnswerSchemas) -> Schema:
        answered = self._verb.answer_type()
        content = {"application/json": {"schema": schemas.answer(answered)}}
        responses: Schema = {str(self.route.status): {"description": "The answer.", "content": content}}
        if any(_may_be_silent(kind) for kind in alternatives(answered)):
            responses["204"] = {"description": "Nothing is told."}
        problem = {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}}
        responses["default"] = {"description": "What went wrong.", "content": problem}
        return responses


# --- Endpoints that call no verb of the table.


def _endpoint_operation(endpoint: Endpoint, schemas: AnswerSchemas) -> Schema:
    details = endpoint.details
    assert details is not None
    names = [part[1:-1] for part in endpoint.path.split("/") if part.startswith("{")]
    text = {"type": "string", "minLength": 1}
    parameters: list[Schema] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if details.query is not None:
        query = _fields_of(details.query)
        parameters += [
            {"name": name, "in": "query", "required": name in query.get("required", ()), **_parameter(field)}
            for name, field in query["properties"].items()
        ]
    for name, told in details.headers.items():
        parameters.append({"name": name, "in": "header", "description": told, "schema": {"type": "string"}})
    operation: Schema = {
        "operationId": details.name,
        "summary": details.summary,
        "description": inspect.cleandoc((details.query or details.body or Struct).__doc__ or details.summary),
        "tags": [details.tag],
        "parameters": parameters,
        "responses": _endpoint_responses(details, schemas),
        "x-right": endpoint.right,
    }
    if details.body is not None:
        body = {**_fields_of(details.body), "additionalProperties": False}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    elif details.is_upload:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": {}}}}
    return operation


def _fields_of(record: type[Struct]) -> Schema:
    _, components = msgspec.json.schema_components([record], ref_template=REF)
    (schema,) = components.values()
    return {key: value for key, value in schema.items() if key not in ("title", "description")}


def _endpoint_responses(details: EndpointDetails, schemas: AnswerSchemas) -> Schema:
    content: Schema = {}
    if details.answer is not None:
        answer = details.answer if isinstance(details.answer, dict) else schemas.answer(details.answer)
        content["application/json"] = {"schema": answer}
    if details.is_stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if details.is_file:
        content["*/*"] = {"schema": {}}
    responses: Schema = {str(status): {"description": "The answer.", "content": content} for status in details.statuses}
    problem = {MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}}
    responses["default"] = {"description": "What went wrong.", "content": problem}
    return responses


def _one(schema: Schema) -> Schema:
    """A path holds one of what a verb takes several of."""
    described = {"description": schema["description"]} if "description" in schema else {}
    return {**schema["items"], **described} if schema.get("type") == "array" else schema


def _parameter(schema: Schema, minimum: int = 0) -> Schema:
    described = {"description": schema["description"]} if "description" in schema else {}
    plain = {name: value for name, value in schema.items() if name != "description"}
    options = [option for option in plain.get("anyOf", ()) if option != {"type": "null"}]
    if options:
        plain = {**{k: v for k, v in plain.items() if k not in ("anyOf", "default")}}
        plain |= options[0] if len(options) == 1 else {"anyOf": options}
    if minimum and plain.get("type") == "string":
        plain["minLength"] = minimum
    return {**described, "schema": plain}


# --- Schemas of answers, as the JSON forms of records are.


def _may_be_silent(kind: Any) -> bool:
    plain = get_origin(kind) or kind
    if not (isinstance(plain, type) and issubclass(plain, Answer)) or issubclass(plain, Listing):
        return False
    return plain.IS_SILENT or bool(plain.DOCUMENT)


class AnswerSchemas:
    """Schemas of answers. Each record that stands in one becomes a component, once."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def answer(self, kind: Any) -> Schema:
        """What a route answers with: a page, or the form of a record."""
        schemas = [self._answered(part) for part in alternatives(kind) if part is not NoneType]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _answered(self, kind: Any) -> Schema:
        plain = get_origin(kind) or kind
        if not (isinstance(plain, type) and issubclass(plain, Listing)):
            return self.form(kind)
        fields = _field_types(plain)
        item = get_args(kind)[0] if get_args(kind) else _listed_type(plain)
        properties = {"items": {"type": "array", "items": self.form(item)}, "next": {"type": ["string", "null"]}}
        for name in plain.__struct_fields__:
            if name not in properties:
                properties[name] = self.form(fields[name], is_time=is_time(name))
        return {"type": "object", "properties": properties, "required": list(properties)}

    def form(self, annotation: Any, *, is_time: bool = False) -> Schema:
        """The schema of a value of this type within a form."""
        origin, parts = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self.form(parts[0], is_time=is_time)
        if origin is Literal:
            return {"enum": list(parts)}
        if origin in (Union, UnionType):
            schemas = [self.form(part, is_time=is_time) for part in parts if part is not UnsetType]
            return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
        if origin in (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Collection):
            return {"type": "array", "items": self.form(parts[0])} if parts else {"type": "array"}
        if origin in (dict, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.form(parts[1])}
        kind = origin or annotation
        return self._class_form(kind, is_time) if isinstance(kind, type) else {}

    def _class_form(self, kind: type, is_time: bool) -> Schema:
        if issubclass(kind, Event | UnknownEvent):
            return {"type": "object", "description": "An event, as docs/events.md has it."}
        if issubclass(kind, Struct):
            return self._record_form(kind)
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        if kind is int and is_time:
            return {"type": "string", "description": "A time, in UTC."}
        return dict(_PLAIN.get(kind, {}))

    def _record_form(self, record: type[Struct]) -> Schema:
        name = title(record)
        if issubclass(record, Answer) and record.DOCUMENT:
            return self.form(_field_types(record)[record.DOCUMENT])
        if name in _OWN_FORMS:
            return dict(_OWN_FORMS[name])
        if name not in self.components:
            self.components[name] = {}  # a record may stand within itself
            self.components[name] = self._component(record)
        return {"$ref": REF.format(name=name)}

    def _component(self, record: type[Struct]) -> Schema:
        name = record.__name__
        tag, flat, hidden = record.__struct_config__.tag, FLAT.get(name), HIDDEN.get(name, ())
        properties: dict[str, Schema] = {} if tag is None else {"type": {"const": tag}}
        required = set(properties)
        encoded = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
        for field, annotation in _field_types(record).items():
            if field in hidden or field not in encoded:
                continue
            if field == flat:
                inner = next(records_in(annotation), None)
                if inner is None or title(inner) in _OWN_FORMS:
                    return {"type": "object", "description": record.__doc__ or ""}
                reference = self._record_form(inner)
                part = self.components[reference["$ref"].rpartition("/")[2]]
                properties |= part.get("properties", {})
                required |= set(part.get("required", ()))
                continue
            properties[encoded[field]] = self.form(annotation, is_time=is_time(field))
            if not any(part is UnsetType for part in alternatives(annotation)):
                required.add(encoded[field])
        for field in BEYOND_FIELDS.get(name, {}):
            properties[field] = {"type": "array", "items": {"type": "string"}}
        described = {"description": inspect.cleandoc(record.__doc__)} if record.__doc__ else {}
        return {"type": "object", **described, "properties": properties, "required": sorted(required)}


def _field_types(record: type[Struct]) -> dict[str, Any]:
    """The types of its fields, also of those that its module names for types alone."""
    names = dict(NAMES)
    for kind in record.__mro__:
        if kind.__module__.startswith("weft."):
            names |= names_for_types(kind.__module__)
    return get_type_hints(record, localns=names)


def _listed_type(listing: type[Struct]) -> Any:
    """What a page of a class of its own lists."""
    bases = getattr(listing, "__orig_bases__", ())
    return next((get_args(base)[0] for base in bases if get_args(base)), Any)


_PLAIN: Mapping[type, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    NoneType: {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
}
_OWN_FORMS: Mapping[str, Schema] = {
    **{name: {"type": "object", "properties": {key: {} for key in keys}} for name, keys in SEED_5.items()},
    "StreamPosition": {"type": "string"},
    "JsonValue": {},
    "StoredEvent": {"type": "object", "required": ["n", "id", "event"]},
    "Diagnosis": {"type": "object", "required": ["grade", "check", "what", "mend", "action"]},
}
"""Records whose forms are not their fields."""
