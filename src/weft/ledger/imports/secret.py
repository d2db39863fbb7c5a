"""The import secret: ledgers that share it name imported things alike. It is local state, in no event and no export."""

from __future__ import annotations

from weft.kernel.errors import NotApplicable
from weft.store.facts import local_value
from weft.store.port import Store, WriteTxn

KEY = "import_secret"


def import_secret(store: Store) -> bytes:
    with store.read() as txn:
        return bytes.fromhex(local_value(txn.sql, KEY))


def adopt_secret(store: Store, secret: bytes) -> None:
    """Take over another ledger's, while nothing has been imported under the own one."""

    def work(txn: WriteTxn) -> None:
        if local_value(txn.sql, KEY) == secret.hex():
            return
        used = ("import_source", "import_name", "link WHERE why = 'resumed'")
        if any(txn.sql.one(f"SELECT 1 FROM {table} LIMIT 1") for table in used):
            raise NotApplicable(
                f"{store.path} has imports under a secret of its own", "share it before the first import"
            )
        txn.sql.run("UPDATE local SET value = ? WHERE key = ?", (secret.hex(), KEY))

    store.write(work)
