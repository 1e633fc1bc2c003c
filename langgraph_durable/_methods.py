"""What the parts of DurableSaver's class build on."""

from __future__ import annotations

from langgraph.checkpoint.base import BaseCheckpointSaver

from langgraph_durable._checkpoints.codec import Codec
from langgraph_durable._context import SaverContext
from langgraph_durable._postgres.drivers import AsyncDatabase, BlockingDatabase


class SaverMethods(BaseCheckpointSaver[str]):
    """A saver's context, and the shorthands its methods use."""

    _context: SaverContext

    @property
    def durable_context(self) -> SaverContext:
        """For this package: also found behind a proxy that forwards unknown names, as the Agent Server's does."""
        return self._context

    @property
    def _db(self) -> BlockingDatabase:
        return self._context.db

    @property
    def _adb(self) -> AsyncDatabase:
        return self._context.adb

    @property
    def _codec(self) -> Codec:
        return self._context.codec(self.serde)
