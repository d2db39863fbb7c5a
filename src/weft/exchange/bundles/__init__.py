"""Bundles: threads in one file that a stranger can verify."""

from weft.exchange.bundles.creation import CreatedBundle, create_bundle, sign_bundle
from weft.exchange.bundles.keys import KeyRing, PublicKey, Signer
from weft.exchange.bundles.verification import BundleReport, import_bundle, verify_bundle

__all__ = [
    "BundleReport",
    "CreatedBundle",
    "KeyRing",
    "PublicKey",
    "Signer",
    "create_bundle",
    "import_bundle",
    "sign_bundle",
    "verify_bundle",
]
