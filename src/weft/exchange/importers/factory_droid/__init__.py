"""Sessions of Factory's droid."""

from weft.exchange.importers.factory_droid.importer import FactoryDroid

__all__ = ["FactoryDroid"]
