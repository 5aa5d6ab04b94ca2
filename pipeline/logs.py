"""How the log is written: lines for people, or one JSON object a line for machines."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

log = logging.getLogger("embedmill")


def set_up(*, quiet: bool = False, as_json: bool = False) -> None:
    """None; `quiet` leaves warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(handlers=[handler], force=True)
    log.setLevel(logging.WARNING if quiet else logging.INFO)


def is_json() -> bool:
    """True where the log is JSON."""
    return any(isinstance(h.formatter, JsonFormatter) for h in logging.getLogger().handlers)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One JSON object: time (UTC), level, message, the facts of the record, and its error."""
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told)
