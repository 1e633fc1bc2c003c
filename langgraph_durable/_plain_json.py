"""Stored values as plain JSON, for display."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_jsonable_python


def plain(value: Any) -> Any:
    """Return a value as plain JSON, or a placeholder that names its type."""
    try:
        made = to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64")
        return json.loads(json.dumps(made), parse_constant=str)  # JSON has neither NaN nor infinities
    except Exception:  # code of stored objects may raise anything; other values are shown
        return f"<{type(value).__name__}, which has no plain form>"
