"""A backend that exists is a backend that passes the contract."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import weft.store
from weft.store.testing import StoreContract


def backends() -> set[type]:
    """Every class that a package of `weft.store` offers as a store."""
    packages = [import_module(found.name) for found in pkgutil.walk_packages(weft.store.__path__, "weft.store.")]
    offered = [(package, name) for package in packages for name in getattr(package, "__all__", ())]
    return {getattr(package, name) for package, name in offered if name.endswith("Store")}


def contracts(kind: type[StoreContract] = StoreContract) -> Iterator[type[StoreContract]]:
    for contract in kind.__subclasses__():
        yield contract
        yield from contracts(contract)


def test_every_backend_passes_the_contract() -> None:
    for file in Path(__file__).parent.glob("test_*.py"):
        import_module(f"tests.contract.{file.stem}")
    under_test = {contract.backend for contract in contracts() if hasattr(contract, "backend")}
    assert backends()
    assert backends() <= under_test
