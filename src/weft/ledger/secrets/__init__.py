"""Credentials in stored contents: found, listed without being shown, and handed to erasing."""

from weft.ledger.secrets.places import SecretPlace
from weft.ledger.secrets.report import Secret, SecretReport, SecretsWanted
from weft.ledger.secrets.scanner import SecretScanner, load_scanner

__all__ = ["Secret", "SecretPlace", "SecretReport", "SecretScanner", "SecretsWanted", "load_scanner"]
