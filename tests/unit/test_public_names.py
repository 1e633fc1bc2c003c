"""Every public module lists its names in `__all__`, and every listed name exists and is documented."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any, get_origin

import pytest

import langgraph_durable
from langgraph_durable import errors

MODULES = (
    "langgraph_durable",
    "langgraph_durable.agent_server",
    "langgraph_durable.cache",
    "langgraph_durable.effects",
    "langgraph_durable.embedded",
    "langgraph_durable.errors",
    "langgraph_durable.interrupts",
    "langgraph_durable.otel",
    "langgraph_durable.reports",
    "langgraph_durable.schema",
    "langgraph_durable.testing",
    "langgraph_durable.timeline",
)

TOP_LEVEL = {
    "DurableError",
    "DurableSaver",
    "EffectError",
    "EffectMiddleware",
    "EffectPolicy",
    "EffectUnknownError",
    "Happened",
    "IDEMPOTENT",
    "NotHappened",
    "READ_ONLY",
    "Undetermined",
    "__version__",
    "current_effect",
    "effect",
}


def defined_in(module: ModuleType) -> set[str]:
    """The public classes and functions that a module defines itself."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    }


@pytest.mark.parametrize("name", MODULES)
def test_all_is_complete_and_every_name_is_documented(name: str) -> None:
    module = import_module(name)
    assert module.__doc__
    listed = module.__all__
    assert sorted(set(listed)) == sorted(listed)
    assert defined_in(module) <= set(listed)
    for public in listed:
        value = getattr(module, public)
        # Before Python 3.11 an alias such as Callable[...] is a class to inspect.
        if (inspect.isclass(value) or inspect.isfunction(value)) and get_origin(value) is None:
            assert has_docstring(value), public


def has_docstring(value: Any) -> bool:
    """Whether a docstring was written: dataclasses get one from their signature."""
    written = value.__doc__
    return bool(written) and not written.startswith(f"{value.__name__}(")


def test_the_top_level_has_the_names_of_every_day() -> None:
    assert set(langgraph_durable.__all__) == TOP_LEVEL


def test_star_import_gives_exactly_the_listed_names() -> None:
    names: dict[str, Any] = {}
    exec("from langgraph_durable import *", names)
    assert names.keys() - {"__builtins__"} == TOP_LEVEL


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_a_durable_error_in_the_documented_tree(name: str) -> None:
    error = getattr(errors, name)
    assert issubclass(error, errors.DurableError)
    assert name.endswith("Error")
    [line] = [line for line in str(errors.__doc__).splitlines() if f"{name} " in f"{line} "]
    is_effect = issubclass(error, errors.EffectError) and error is not errors.EffectError
    assert line.startswith("    │   ") == is_effect


def test_only_invalid_input_is_a_value_error_or_type_error() -> None:
    found = {name for name in errors.__all__ if issubclass(getattr(errors, name), (ValueError, TypeError))}
    assert found == {"InvalidConfigError", "UnserializableValueError"}
