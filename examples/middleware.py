"""Protect tools that you cannot change, in an agent of LangChain's `create_agent` (extra [agents])."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool

from langgraph_durable import (
    READ_ONLY,
    DurableSaver,
    EffectMiddleware,
    EffectPolicy,
    Happened,
    NotHappened,
    embedded,
)
from langgraph_durable.effects import EffectRecord

CHARGED: list[str] = []
LOST = [TimeoutError("the provider's response was lost")]


@tool
def look_up(invoice: str) -> str:
    """Look an invoice up."""
    return f"{invoice} is over 4200 cents"


@tool
def charge(invoice: str) -> str:
    """Charge the customer's card: a tool from another package, without @effect."""
    CHARGED.append(invoice)
    if LOST:
        raise LOST.pop()  # the card is charged, but no response arrives
    return f"charged {invoice}"


def find_charge(attempt: EffectRecord) -> Happened | NotHappened:
    """Ask the provider whether an earlier attempt took place."""
    invoice = attempt.args["invoice"]
    return Happened(f"charged {invoice}") if invoice in CHARGED else NotHappened()


class ScriptedModel(BaseChatModel):
    """A scripted chat model: looks the invoice up, charges it, and reports."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Accept any tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        done = sum(isinstance(message, ToolMessage) for message in messages)
        if done == 2:
            message = AIMessage(f"Done: {messages[-1].content}.")
        else:
            name = ("look_up", "charge")[done]
            message = AIMessage(
                "", tool_calls=[{"name": name, "args": {"invoice": "INV-7"}, "id": f"call-{done}"}]
            )
        return ChatResult(generations=[ChatGeneration(message=message)])


def main() -> None:
    """Pay, lose the response, and run again."""
    config: RunnableConfig = {"configurable": {"thread_id": "middleware"}}
    with embedded.database() as conninfo, DurableSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        saver.delete_thread("middleware", force=True)
        policies = {"charge": EffectPolicy(verify=find_charge), "look_up": READ_ONLY}
        agent: Any = create_agent(
            ScriptedModel(),
            [look_up, charge],
            middleware=[
                EffectMiddleware(saver.effects, policies)
            ],  # last, so that it wraps the tool directly
            checkpointer=saver,
        )
        try:
            agent.invoke({"messages": [HumanMessage("pay invoice 7")]}, config)
        except TimeoutError as exc:
            print("the run failed:", exc)
        print("run again, the agent says:", agent.invoke(None, config)["messages"][-1].content)
        print("charges:", len(CHARGED))


if __name__ == "__main__":
    main()
