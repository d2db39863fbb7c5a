"""Credentials in stored contents: found, listed without being shown, shown when asked for, and handed to erasing."""

from weft.ledger.secrets.findings import SecretFinding, SecretMatch, SecretPlace, SecretReport, SecretsWanted
from weft.ledger.secrets.scan import KnownSecrets, SecretScanner, load_rules, load_scanner, mark_secrets

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
