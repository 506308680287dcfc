"""Counting reasoning tokens: those delivered up to and including `</think>`."""

from collections.abc import Sequence


class ReasoningCount:
    """Counts one choice. An open block (the prompt or the first token opened it) counts to its last token."""

    def __init__(self, prompt: Sequence[int], start_id: int | None, end_id: int | None) -> None:
        self._start_id, self._end_id = start_id, end_id
        self._open = start_id is not None and _opened(prompt, start_id, end_id)
        self._delivered = 0
        self._closed_at = 0

    def feed(self, token_id: int) -> None:
        self._delivered += 1
        if self._closed_at:
            return
        if token_id == self._end_id:
            self._closed_at = self._delivered
        elif token_id == self._start_id and self._delivered == 1:
            self._open = True

    @property
    def tokens(self) -> int:
        return self._closed_at or (self._delivered if self._open else 0)


def _opened(prompt: Sequence[int], start_id: int, end_id: int | None) -> bool:
    for token_id in reversed(prompt[-8:]):  # a template opens the block at the very end: `<think>\n`
        if token_id == end_id:
            return False
        if token_id == start_id:
            return True
    return False
