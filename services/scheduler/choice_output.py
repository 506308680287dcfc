"""One choice's tokens on their way to the client: text, ids and log-probabilities that end together."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.request import GeneratedToken
from services.scheduler.detokenizer import Detokenizer
from services.scheduler.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class Piece:
    """What may leave now. `stop` is set when a stop string ended the choice; then it is the last piece."""

    text: str
    tokens: tuple[GeneratedToken, ...]
    stop: str = ""


class ChoiceOutput:
    """Detokenizes and watches for stop strings.

    A token belongs to the text from the character at which its bytes begin. When a stop string cuts the text at
    character `c`, the tokens that begin before `c` stay and the others never leave, and so do not count. A token is
    therefore held while its first character is.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes] | None, stops: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        """
        Args:
            token_bytes: None without a tokenizer: ids leave at once and text stays empty.
            min_tokens: stop strings are looked for in the text after so many tokens.
        """
        self._detokenizer = None if token_bytes is None else Detokenizer(token_bytes)
        self._stops = StopStrings(stops)
        self._watching = bool(stops)
        self._min_tokens = min_tokens
        self._taken = 0  # tokens fed
        self._decoded = 0  # characters
        self._unwatched = 0  # characters that the stop strings never saw
        self._text = ""  # decoded, not released
        self._held: deque[tuple[int, GeneratedToken]] = deque()  # (first character, token), not released

    def feed(self, token: GeneratedToken, *, ends_by_id: bool = False) -> Piece:
        """Take the next token. One that `ends_by_id` is delivered as an id, and its spelling is not text."""
        self._held.append((self._decoded, token))
        self._taken += 1
        if self._detokenizer is None or ends_by_id:
            return self._release(self._decoded - self._stops.held)
        text = self._detokenizer.feed(token.token_id)
        self._text += text
        self._decoded += len(text)
        if self._taken <= self._min_tokens:
            self._unwatched += len(text)
            return self._release(self._decoded)
        match = self._stops.feed(text)
        if match is None:
            return self._release(self._decoded - self._stops.held)
        self._text = self._text[: len(self._text) - (self._decoded - self._unwatched - match.start)]
        self._decoded = self._unwatched + match.start
        piece = self._release(self._decoded)
        self._held.clear()
        return Piece(piece.text, piece.tokens, match.stop)

    def end(self) -> Piece:
        """No token follows: everything that was held leaves."""
        if self._detokenizer is not None:
            self._text += self._detokenizer.end()
        text, self._text = self._text, ""
        tokens = tuple(token for _, token in self._held)
        self._held.clear()
        return Piece(text, tokens)

    def _release(self, until: int) -> Piece:
        """Text before character `until` of all that was decoded, and the tokens that begin there."""
        kept = self._decoded - until
        cut = len(self._text) - kept
        text, self._text = self._text[:cut], self._text[cut:]
        tokens = []
        while self._held and (not self._watching or self._held[0][0] < until):
            tokens.append(self._held.popleft()[1])
        return Piece(text, tuple(tokens))
