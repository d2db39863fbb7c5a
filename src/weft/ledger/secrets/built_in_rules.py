"""Rules of our own: credentials that are known by how they begin, and private keys of which only a part is there.

They are few and need nothing installed. Where kingfisher's rules are there too, both are asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

RULES = "weft.1"
"""Names this list; another list has another number."""
_KEY_LINE = r"(?:\s|\\[nrt]|\d{1,7}[\t:-])*+[A-Za-z0-9+/=]{16,}+"
"""A line of a private key, perhaps with its number before it or with its line end escaped."""


class BuiltInRule(Struct, frozen=True):
    """One kind of credential."""

    kind: str
    word: str
    """Stands in every text in which it is found."""
    expression: re.Pattern[str]
    """Its group 1 is the credential."""


def _rule(kind: str, word: str, expression: str) -> BuiltInRule:
    return BuiltInRule(kind, word, re.compile(expression))


def _prefixed(kind: str, prefix: str, rest: str) -> BuiltInRule:
    return _rule(kind, prefix, rf"(?<![A-Za-z0-9])({re.escape(prefix)}{rest})")


BUILT_IN_RULES = (
    _rule(
        "private key",
        "PRIVATE KEY",
        r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:\s*+[A-Za-z-]{1,30}: [^\n]{0,200}){0,8}+"
        rf"(?:{_KEY_LINE})++(?:(?:\s|\\[nrt]|\d{{1,7}}[\t:-])*+-----END [A-Z ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----)?+)",
    ),
    _prefixed("GitHub token", "ghp_", "[A-Za-z0-9]{36,}"),
    _prefixed("GitHub token", "gho_", "[A-Za-z0-9]{36,}"),
    _prefixed("GitHub token", "ghs_", "[A-Za-z0-9]{36,}"),
    _prefixed("GitHub token", "github_pat_", "[A-Za-z0-9_]{60,}"),
    _prefixed("GitLab token", "glpat-", "[A-Za-z0-9_-]{20,}"),
    _prefixed("Anthropic key", "sk-ant-", "[A-Za-z0-9_-]{20,}"),
    _prefixed("OpenAI key", "sk-proj-", "[A-Za-z0-9_-]{20,}"),
    _prefixed("OpenAI key", "sk-svcacct-", "[A-Za-z0-9_-]{20,}"),
    _rule(
        "OpenAI key",
        "T3BlbkFJ",
        # from the beginning of a word, whose first sk- is taken: so each letter is read once
        r"(?<![A-Za-z0-9_-])(?>[A-Za-z0-9_-]*?(?<![A-Za-z0-9])(?=sk-))"
        r"(sk-[A-Za-z0-9_-]{20,}T3BlbkFJ[A-Za-z0-9_-]{20,})",
    ),
    _prefixed("OpenRouter key", "sk-or-v1-", "[0-9a-f]{64}"),
    _prefixed("Groq key", "gsk_", "[A-Za-z0-9]{40,}"),
    _prefixed("Google key", "AIza", "[A-Za-z0-9_-]{35}"),
    _rule(
        "AWS secret access key",
        "ecret",
        r"[Ss]ecret_?[Aa]ccess_?[Kk]ey[\"'\s:=]{1,10}([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    _rule(
        "AWS secret access key",
        "SECRET_ACCESS_KEY",
        r"SECRET_ACCESS_KEY[\"'\s:=]{1,10}([A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])",
    ),
    _prefixed("Slack token", "xox", "[abeoprs]-[A-Za-z0-9-]{20,}"),
    _prefixed("Stripe key", "sk_live_", "[A-Za-z0-9]{20,}"),
    _prefixed("Stripe key", "rk_live_", "[A-Za-z0-9]{20,}"),
    _prefixed("npm token", "npm_", "[A-Za-z0-9]{36}"),
    _prefixed("PyPI token", "pypi-AgE", "[A-Za-z0-9_-]{50,}"),
    _prefixed("Hugging Face token", "hf_", "[A-Za-z]{34}"),
    _prefixed("SendGrid key", "SG.", r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
)


def built_in_secrets(text: str) -> Iterator[tuple[str, str]]:
    """The credentials in a text that these rules know, each with its kind."""
    for rule in BUILT_IN_RULES:
        if rule.word in text:
            for match in rule.expression.finditer(text):
                yield rule.kind, match[1]
