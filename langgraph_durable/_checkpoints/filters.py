"""Metadata filters of listings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langgraph_durable.errors import InvalidConfigError


def require_filter(filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a metadata filter as plain JSON values; None and {} filter nothing.

    Raises:
        InvalidConfigError: The filter is not a JSON object.
    """
    if filter is None:
        return {}
    if not isinstance(filter, Mapping):
        raise InvalidConfigError(f"filter must be a dict of metadata, got {filter!r:.200}")
    for key, value in filter.items():
        _require_json(key, value)
    return dict(filter)


def _require_json(key: Any, value: Any) -> None:
    if not isinstance(key, str):
        raise InvalidConfigError(f"filter has the key {key!r:.200}: metadata keys are str")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as exc:
        raise InvalidConfigError(
            f"filter[{key!r}] is not JSON ({exc}): filter by str, int, float, bool, None, or lists and "
            "dicts of them"
        ) from exc


def filter_matches(metadata: Any, wanted: Any) -> bool:
    """Return whether metadata contains what a filter asks for, as jsonb `@>` does.

    A dict contains every wanted key with a value that contains the wanted one. A list has, for every wanted element,
    one that contains it. Anything else is equal. None matches only a None that is present.
    """
    if isinstance(wanted, Mapping):
        return isinstance(metadata, Mapping) and all(
            key in metadata and filter_matches(metadata[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, (list, tuple)):
        return isinstance(metadata, (list, tuple)) and all(
            any(filter_matches(element, value) for element in metadata) for value in wanted
        )
    if isinstance(wanted, bool) or isinstance(metadata, bool):
        return wanted is metadata  # True is not 1 in JSON
    return bool(metadata == wanted)
