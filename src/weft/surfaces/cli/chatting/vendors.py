"""Providers that people keep a key of in their environment."""

from __future__ import annotations

from msgspec import Struct

from weft.runtime.egress.credentials import Variable
from weft.runtime.inference.settings import ProviderKind


class Vendor(Struct, frozen=True):
    """A provider that people keep a key of in their environment."""

    kind: ProviderKind
    variables: tuple[str, ...]
    default: str
    names: str
    """What the names of its models begin with."""


VENDORS = (
    Vendor(ProviderKind.ANTHROPIC, ("ANTHROPIC_API_KEY",), "claude-sonnet-5", r"claude-"),
    Vendor(ProviderKind.OPENAI, ("OPENAI_API_KEY",), "gpt-5.4", r"gpt-|chatgpt-|o\d"),
    Vendor(ProviderKind.GOOGLE, ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-2.5-flash", r"gemini-"),
)


def keyed(variable: Variable) -> list[tuple[Vendor, str]]:
    """The vendors whose key is in the environment, and the name of its variable. The key itself is not looked at."""
    found = []
    for vendor in VENDORS:
        held = next((name for name in vendor.variables if (variable(name) or "").strip()), None)
        if held is not None:
            found.append((vendor, held))
    return found
