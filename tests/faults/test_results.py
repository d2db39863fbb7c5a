"""The table of what was counted adds up the parts of a test, and only those."""

from tests.faults.results import Counted, table


def test_parts_of_a_test_are_added_up() -> None:
    counted = [
        Counted("test_a[0]", "700 flips: 300 noticed", 1.4),
        Counted("test_a[1]", "700 flips: 301 noticed", 1.4),
        Counted("test_d[0]", "2,646 steps", 1),
        Counted("test_d[1]", "998 steps", 1),
        Counted("test_b[closed--0]", "5 flips", 1),
        Counted("test_b[closed--1]", "6 flips", 1),
        Counted("test_b[open--0]", "7 flips", 1),
        Counted("test_c", "16 x 250 turns, longest wait 0.2 s", 1),
    ]
    assert list(table(counted))[2:] == [
        "| `test_a` | 1,400 flips: 601 noticed | 3 |",
        "| `test_b[closed-]` | 11 flips | 2 |",
        "| `test_b[open-]` | 7 flips | 1 |",
        "| `test_c` | 16 x 250 turns, longest wait 0.2 s | 1 |",
        "| `test_d` | 3,644 steps | 2 |",
    ]
