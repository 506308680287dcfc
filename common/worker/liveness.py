"""Whether an instance still makes progress: every thread that it cannot do without tells when it last went round."""

from collections.abc import Callable, Mapping
from typing import Any

from common.engine.loop import EngineLoop


class Liveness:
    """Of one instance. May be asked from any thread.

    Args:
        stalled_after_s: a thread without progress for longer hangs, and only a restart helps.
        beside: threads beside the engine's by name, each with the seconds since it last went round.
    """

    def __init__(
        self,
        engine: EngineLoop[Any, Any],
        stalled_after_s: float,
        beside: Mapping[str, Callable[[], float]] | None = None,
    ) -> None:
        self._engine = engine
        self._stalled_after_s = stalled_after_s
        self._ages_s = {"engine": engine.progress_age_s, **(beside or {})}

    def fault(self) -> str | None:
        """Why the instance is not live, for whoever has to find out; None while it is."""
        if self._engine.error is not None:
            return f"the engine died: {self._engine.error}"
        for thread, age_s in self._ages_s.items():
            if (silent_s := age_s()) > self._stalled_after_s:
                return f"the {thread} made no progress for {silent_s:.1f} s, more than {self._stalled_after_s:g} s"
        return None
