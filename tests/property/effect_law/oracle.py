"""The oracle: how often each order is wanted, from the program, the inputs and the states that callers saw.

It never reads the effect log. An input wants what the program does with it, beside what the state has at that moment.
So what a crash kept from the state is wanted once, and what was delivered before is wanted once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from tests.property.effect_law.flows import PICK, item_of
from tests.property.effect_law.model import ask, open_wishes, wish_done
from tests.property.effect_law.programs import Case, Fan, Flow, Loop, Talk, count_orders
from tests.property.effect_law.vendor import kind_of, receipts_in


def delivered_texts(case: Case, values: Any) -> list[str]:
    """Return the results of effects that a state holds."""
    if not values:
        return []
    if isinstance(case.program, (Talk, Fan)):
        found = [str(m.content) for m in values.get("messages", ()) if isinstance(m, ToolMessage)]
        return [text for text in found if wish_done(text)]
    texts = [line.partition("|")[2] for line in values.get("out", ())]
    if isinstance(case.program, Loop):
        texts += [str(m.content) for m in values.get("ai", ()) if isinstance(m, ToolMessage)]
    return texts


def count_delivered(texts: list[str]) -> Counter[str]:
    return Counter(kind_of(order) for text in texts for order, _ in receipts_in(text))


def wanted_by_input(case: Case, values: Any, wishes: tuple[str, ...], run: int) -> Counter[str]:
    """Return what a run wants that begins with an input on a state."""
    program = case.program
    if isinstance(program, Talk):
        messages = (values or {}).get("messages", ())
        wanted = count_orders(open_wishes([*messages, ask(wishes)]).elements())
        if program.shape == "wrapped":
            # The middleware answers calls that were left open, before the model reads the new message. If that asks
            # for the same, it is another request.
            healed = _unanswered(messages)
            rest = (open_wishes(messages) - healed) | Counter(wishes)
            wanted |= count_orders((healed + rest).elements())
        return wanted
    return wanted_per_run(case, run)


def _unanswered(messages: Sequence[Any]) -> Counter[str]:
    """Return what the last calls ask for that no message answers."""
    start = max((i for i, message in enumerate(messages) if isinstance(message, AIMessage)), default=None)
    if start is None:
        return Counter()
    answered = {m.tool_call_id for m in messages[start:] if isinstance(m, ToolMessage)}
    left = [call for call in messages[start].tool_calls if call["id"] not in answered]
    return Counter(f"{call['name']}:{call['args']['item']}" for call in left)


def wanted_per_run(case: Case, run: int) -> Counter[str]:
    """Return what each run wants of a program that always does the same."""
    program = case.program
    if isinstance(program, Fan):
        return Counter(f"bill:{item}-{customer}" for customer in program.customers for item in program.items)
    if isinstance(program, Loop):
        return Counter(f"pay:{item}" for item in program.items * program.turns)
    assert isinstance(program, Flow)
    wishes = [wish for nodes in program.steps for node in nodes for wish in node.calls]
    wanted: Counter[str] = Counter()
    for wish in wishes:
        tool, _, item = wish.partition(":")
        if program.argument != "plain":
            tool = "pay"
        wanted += count_orders([f"{tool}:{item_of(program, item, run)}"])
    if program.ask or program.decide:
        wanted[PICK] += 1
    return wanted


def missing_at_end(case: Case, values: Any) -> Counter[str]:
    """Return what the last run of a finished thread should have delivered and has not."""
    program = case.program
    if not values:
        return Counter()
    if isinstance(program, Talk):
        return Counter(open_wishes(values["messages"]))
    if isinstance(program, Fan):
        messages = values["messages"]
        start = max(i for i, message in enumerate(messages) if isinstance(message, HumanMessage))
        texts = delivered_texts(case, {"messages": messages[start:]})
        return wanted_per_run(case, 0) - count_delivered(texts)
    tag = f"{values['began']}|"
    lines = [line.partition("|")[2] for line in values["out"] if line.startswith(tag)]
    return wanted_per_run(case, values.get("run", 0)) - count_delivered(lines)


def wrong_answers(case: Case, values: Any) -> list[str]:
    """Return the results that name another order than the one their caller made, and receipts handed out twice."""
    problems: list[str] = []
    if not values:
        return problems
    calls: dict[str, Mapping[str, Any]] = {}
    for message in values.get("messages", ()) if isinstance(case.program, Talk) else ():
        if isinstance(message, AIMessage):
            calls = {str(call["id"]): call for call in message.tool_calls}
        elif isinstance(message, ToolMessage) and (done := wish_done(str(message.content))):
            call = calls.get(message.tool_call_id)
            asked = f"{call['name']}:{call['args']['item']}" if call is not None else None
            if asked != done:
                problems.append(f"asked for {asked}, got {message.content!r}")
    if case.policy.scope == "call":
        found = Counter(receipt for text in delivered_texts(case, values) for _, receipt in receipts_in(text))
        problems += [
            f"{times} callers got the outcome {receipt}" for receipt, times in found.items() if times > 1
        ]
    return problems


def once_per_thread(wanted: Counter[str]) -> Counter[str]:
    """Return what is wanted under scope="thread": each order once."""
    return Counter(dict.fromkeys(+wanted, 1))
