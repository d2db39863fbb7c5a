"""Credentials in stored contents: found, listed without being shown, shown when asked for, and handed to erasing."""

from weft.ledger.secrets.matches import SecretMatch
from weft.ledger.secrets.places import SecretPlace
from weft.ledger.secrets.report import SecretFinding, SecretReport, SecretsWanted
from weft.ledger.secrets.scanner import SecretScanner, load_scanner
from weft.ledger.secrets.sent_results import KnownSecrets, load_rules, mark_secrets

__all__ = [
    "KnownSecrets",
    "SecretFinding",
    "SecretMatch",
    "SecretPlace",
    "SecretReport",
    "SecretScanner",
    "SecretsWanted",
    "load_rules",
    "load_scanner",
    "mark_secrets",
]
