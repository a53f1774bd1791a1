"""Amounts as short texts for a person: numbers of tokens, bytes, lengths of time."""


def short_count(number: int) -> str:
    """Return a number, in thousands from 1000 on: `999`, `6.9k`."""
    return str(number) if number < 1000 else f"{number / 1000:.1f}k"


def format_duration(seconds: float) -> str:
    """Return whole units of a time, such as `45 s`, `10 min`, `3 h` or `2 days`."""
    for unit, length, limit in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 2 * 86400)):
        if seconds < limit:
            return f"{int(seconds / length)} {unit}"
    return f"{int(seconds / 86400)} days"


def format_bytes(num_bytes: float) -> str:
    """Format a number of bytes with a unit, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
