"""Sphinx configuration: `make docs`."""

from __future__ import annotations

import re
from typing import Any

from langgraph_durable import __version__

project = "langgraph-durable"
author = "The langgraph-durable authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = f"langgraph-durable {release}"
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def translate_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn the Markdown of the docstrings into reStructuredText.

    Module docstrings are left out: the pages say what they say.
    """
    if what == "module":
        lines.clear()
        return
    translated = []
    in_code = False
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if line.strip().startswith("```"):
            in_code = not in_code
            translated += [f"{indent}.. code-block:: {line.strip()[3:] or 'text'}", ""] if in_code else [""]
        elif in_code:
            translated.append(f"   {line}" if line.strip() else "")
        else:
            translated.append(_translate_line(line))
    lines[:] = translated


def _translate_line(line: str) -> str:
    """Make code of single backticks, and take the meaning from characters that are markup only in reStructuredText."""
    parts = re.split(r"(`+[^`]+`+)", line)
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = f"``{part.strip('`')}``"
        else:
            parts[number] = re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part)
    return "".join(parts)


def setup(app: Any) -> None:
    """Translate docstrings before napoleon reads them."""
    app.connect("autodoc-process-docstring", translate_docstring, priority=400)
