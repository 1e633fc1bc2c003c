"""For tests of graphs: empty databases, crashes at a named point, and a vendor that counts what it is paid.

The pytest fixtures are in `langgraph_durable.testing.plugin`.
"""

from langgraph_durable.testing.crashes import CrashPoint, crash_at
from langgraph_durable.testing.databases import Databases, server
from langgraph_durable.testing.vendor import FakeVendor, PaymentRefusedError, VendorRules, fake_vendor

__all__ = [
    "CrashPoint",
    "Databases",
    "FakeVendor",
    "PaymentRefusedError",
    "VendorRules",
    "crash_at",
    "fake_vendor",
    "server",
]
