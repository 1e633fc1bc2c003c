"""Calls pass through few modules, so that a reader can follow them."""

from __future__ import annotations

from benchmarks.trace import TARGETS, trace, trace_all

LIMITS = {"put": 18, "get_tuple": 15, "list of 4": 17, "@effect": 31}
"""Call -> the most modules it may pass through: what the source needs now. The goal is benchmarks.trace.TARGETS."""


def test_paths_are_short(conninfo: str) -> None:
    paths = trace_all(conninfo)
    assert paths.keys() == LIMITS.keys() == TARGETS.keys()
    for name, path in paths.items():
        assert path.modules[0] == ("effects/decorator.py" if name == "@effect" else "saver.py"), name
        assert any(module.startswith("_postgres/") for module in path.modules), name  # traced to the database
        assert len(path.modules) <= LIMITS[name], (name, path.modules)


def test_trace_ignores_other_packages() -> None:
    path = trace(lambda: sorted([2, 1], key=lambda n: n))
    assert (path.modules, path.switches, path.depth) == ([], 0, 0)
