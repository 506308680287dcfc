"""The expert placement that the whole cluster is to use: one document, of which versions only grow."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from common.errors import InvalidInput
from common.state.connect import script_text, translated
from common.state.keys import Keys


@dataclass(frozen=True, slots=True)
class PlacementDocument:
    """`document` is JSON; its meaning is its reader's."""

    version: int
    document: Mapping[str, Any]


class PlacementStore:
    """Every call may raise DependencyUnavailable; what a reader had before stays valid then."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.expert_placement
        self._put = redis.register_script(script_text("placement_put.lua"))

    async def put(self, placement: PlacementDocument) -> None:
        """Store a document of a higher version than the stored one.

        Raises:
            InvalidInput: the version is not higher.
        """
        with translated("expert placement"):
            text = json.dumps(placement.document)
            accepted, stored = await self._put(keys=[self._key], args=[placement.version, text])
        if not accepted:
            raise InvalidInput("version", placement.version, f"must be above {stored}")

    async def get(self) -> PlacementDocument | None:
        """The stored document, if any."""
        with translated("expert placement"):
            version, document = await self._redis.hmget(self._key, "version", "document")
        if version is None or document is None:
            return None
        return PlacementDocument(int(version), json.loads(document))
