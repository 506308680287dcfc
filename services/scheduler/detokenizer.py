"""Bytes of tokens to text, as they come."""

import codecs
from collections.abc import Callable


class Detokenizer:
    """Text of a growing sequence: what it gave so far, joined, is a prefix of the decode of all tokens at once.

    A character whose bytes are spread over tokens comes with the token that completes it. Only bytes that can never
    become a character turn into U+FFFD, exactly as in the one-shot decode.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self._token_bytes(token_id))

    def end(self) -> str:
        """What is left when no token follows: U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", final=True)
