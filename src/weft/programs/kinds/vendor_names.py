"""Names of vendors are reserved: whoever says `anthropic` means the vendor, and no program stands in for it.

A provider may bear a vendor's name where it is that vendor's: of its type, without a server of its own. No model may,
nor may a model be named as one of a vendor's (`anthropic/…`). This is checked when a program is made or configured,
when one of another ledger is taken over, and when one is used.
"""

from __future__ import annotations

from typing import Any

from weft.kernel.errors import InvalidInput, quoted

VENDORS = ("anthropic", "openai", "google")


def is_vendor_name(name: str) -> bool:
    """Whether this name, or what stands before a slash in it, is a vendor's."""
    return name.casefold().partition("/")[0] in VENDORS


def refuse_model_name(name: str, config: Any) -> None:
    if is_vendor_name(name):
        raise _refusal("model", name)


def refuse_provider_name(name: str, config: Any) -> None:
    fields = config if isinstance(config, dict) else {}
    is_vendors = fields.get("providerType") == name.casefold() and "baseUrl" not in fields
    if is_vendor_name(name) and not is_vendors:
        raise _refusal("provider", name)


def _refusal(kind: str, name: str) -> InvalidInput:
    vendor = name.casefold().partition("/")[0]
    return InvalidInput(
        f"{kind} {quoted(name)} bears the name of the vendor {vendor}, and is not the vendor's",
        f"choose another name; a provider may be called {vendor} if its type is {vendor} and it has no baseUrl",
    )
