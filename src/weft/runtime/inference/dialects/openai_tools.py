"""Tools as OpenAI takes them: with a schema that it can hold a model to strictly, where the schema allows that.

A strict schema closes every object and requires every property. A schema that is so already is sent as a strict one;
any other is sent as it is meant, and the model is trusted. Nothing is changed in what a schema allows but that objects
which say nothing of further properties are closed.
"""

from __future__ import annotations

import re
from typing import Any

from weft.runtime.inference.settings import ToolSpec
from weft.runtime.inference.tool_names import wire_name

_LEFT_OUT = ("title", "$schema", "discriminator")
_UNSTRICT_KEYS = (
    "default", "oneOf", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties", "maxProperties",
    "unevaluatedItems", "contains", "minContains", "maxContains", "uniqueItems", "minLength", "maxLength",
)  # fmt: skip
"""What no strict schema may hold."""
_STRICT_FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid".split())
_TYPING_KEYS = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_DEFINITION = re.compile(r"#/(\$defs|definitions)/[^/]+")
_ESCAPED = re.compile(r"\\.", re.S)
_LOOKAROUNDS = ("(?=", "(?!", "(?<=", "(?<!")


def openai_tool(tool: ToolSpec) -> dict[str, Any]:
    """A schema that is none, which a server of tools may give, is sent as it stands: one tool must not fail every turn
    that offers it, and the provider says what it does not take."""
    try:
        walk = _SchemaWalk(tool.schema)
        schema, is_strict = walk.schema, walk.is_strict
    except (AttributeError, TypeError, RecursionError):  # lists where objects are due, levels without end
        schema, is_strict = tool.schema, False
    return {
        "name": wire_name(tool.name),
        "description": tool.description or "",
        "parameters": schema,
        "strict": is_strict,
    }


class _SchemaWalk:
    """A copy of a schema as it is sent, and whether it is strict."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.is_strict = True
        self._root = schema.get("$ref")
        """Where the schema is one of its own definitions: that stands in its place, and is referred to as `#`."""
        whole = schema
        if isinstance(self._root, str) and _DEFINITION.fullmatch(self._root):
            _, group, name = self._root.split("/")
            definition = schema.get(group, {}).get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(definition, dict):
                whole = {key: value for key, value in schema.items() if key != "$ref"} | definition
        self.schema = self._node(whole)
        for name in ("$defs", "definitions"):
            if isinstance(definitions := schema.get(name), dict):
                self.schema[name] = {key: self._node(node) for key, node in definitions.items()}

    def _node(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        sent = {key: self._below(key, value) for key, value in node.items() if key not in _LEFT_OUT}
        if isinstance(reference := sent.get("$ref"), str):
            sent = self._referring(sent, reference)
        self.is_strict &= not any(key in sent for key in _UNSTRICT_KEYS)
        self.is_strict &= not sent.get("format") or sent["format"] in _STRICT_FORMATS
        pattern = sent.get("pattern")
        self.is_strict &= not (isinstance(pattern, str) and _looks_around(pattern))
        if sent.get("type") == "object":
            self._close(sent)
        if sent.get("type") == "array":
            items = sent.get("items")
            has_typed_items = isinstance(items, dict) and any(key in items for key in _TYPING_KEYS)
            self.is_strict &= has_typed_items
        return sent

    def _below(self, key: str, value: Any) -> Any:
        match key:
            case "properties" | "patternProperties" if isinstance(value, dict):
                return {name: self._node(node) for name, node in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                return self._node(value)
            case "allOf" | "anyOf" | "oneOf" | "prefixItems" if isinstance(value, list):
                return [self._node(node) for node in value]
            case _:
                return value

    def _referring(self, sent: dict[str, Any], reference: str) -> dict[str, Any]:
        """A strict reference leads to a definition, and stands alone."""
        if reference == self._root:
            reference = "#"
        elif reference.startswith("#/") and not _DEFINITION.fullmatch(reference):
            self.is_strict = False
        others = {key: value for key, value in sent.items() if key != "$ref"}
        return {**others, "anyOf": [{"$ref": reference}]} if others else {"$ref": reference}

    def _close(self, sent: dict[str, Any]) -> None:
        properties = sent.setdefault("properties", {})
        if sent.get("additionalProperties") not in (None, False):
            self.is_strict = False
        else:
            sent["additionalProperties"] = False
        required = sent.get("required")
        self.is_strict &= isinstance(required, list) and all(name in required for name in properties)


def _looks_around(pattern: str) -> bool:
    bare = _ESCAPED.sub("", pattern)
    return any(token in bare for token in _LOOKAROUNDS)
