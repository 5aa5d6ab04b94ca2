"""Numbers, times and untrusted texts as people read them."""

from datetime import UTC, datetime

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count_text(value: int) -> str:
    """1,234,567."""
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """1 shard, 1,234 shards."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def share_text(value: float) -> str:
    """12.3 %; never 100.0 % for less than all, nor 0.0 % for more than nothing."""
    if 0 < value < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{100 * value:.1f} %"


def bytes_text(value: int) -> str:
    """1.5 GiB."""
    size = float(value)
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} {_UNITS[-1]}"


def duration_text(seconds: float) -> str:
    """850 ms, 12.3 s, 4 min 05 s, 3 h 12 min or 2 d 03 h."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def time_text(seconds: float) -> str:
    """2026-12-02 16:08:43 UTC, from seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shortened(text: str, length: int = 160) -> str:
    """The text, its end left out where it is longer."""
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def clipped(text: str, length: int = 160) -> str:
    """A name, its middle left out where it is longer."""
    if len(text) <= length:
        return text
    half = (length - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
