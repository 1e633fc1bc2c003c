"""The fake vendor of `langgraph_durable.testing`, by the short names of these tests."""

from __future__ import annotations

from langgraph_durable.testing import FakeVendor as Vendor
from langgraph_durable.testing import PaymentRefusedError
from langgraph_durable.testing import VendorRules as Rules
from langgraph_durable.testing import fake_vendor as running_vendor

__all__ = ["PaymentRefusedError", "Rules", "Vendor", "running_vendor"]
