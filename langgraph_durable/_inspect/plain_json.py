"""Values that somebody stored, as plain JSON for those who only look at them."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_jsonable_python


def plain(value: Any) -> Any:
    """Return a value as plain JSON; what has no such form is named."""
    try:
        made = to_jsonable_python(value, serialize_unknown=True, bytes_mode="base64")
        return json.loads(json.dumps(made), parse_constant=str)  # NaN and infinities, which JSON has not
    except Exception:  # whatever a stored object's own code raises: the others are shown
        return f"<{type(value).__name__}, which has no plain form>"
