"""How much something weighs, in one way everywhere."""


def size_text(count: int) -> str:
    """`12.3 MB`, as file managers say it."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count} B"
