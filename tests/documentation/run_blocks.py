"""Run code blocks, each in a separate process, forked from this one so that imports are paid for once.

One JSON object a line on standard input: `parts`, a list of (file name, first line, code); `database_url`; `stdout` and
`stderr`, files for the output. One exit status a line on standard output.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from types import ModuleType
from typing import Any

TIMEOUT = 60
PRELOADED = ("langchain_core.tools", "langgraph.graph", "langgraph.prebuilt", "langgraph_durable.embedded")


def main() -> None:
    """Serve until standard input ends."""
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        if (child := os.fork()) == 0:
            sys.exit(_run(request))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: dict[str, Any]) -> int:
    signal.alarm(TIMEOUT)
    os.environ["DATABASE_URL"] = request["database_url"]
    for name, number in (("stdout", 1), ("stderr", 2)):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    program = ModuleType("__main__")
    sys.modules["__main__"] = program  # where typing looks names up
    try:
        for file_name, first_line, text in request["parts"]:
            code = compile("\n" * (first_line - 1) + text, file_name, "exec")
            exec(code, program.__dict__)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
