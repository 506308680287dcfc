"""Text and chat to token ids, and token ids to bytes.

Text from a client never becomes a control token. Control tokens are the tokenizer's added tokens (DeepSeek marks
`<｜User｜>` and `</think>` as not special, so the flag does not tell); a second tokenizer without them encodes
everything that a client wrote. A rendered chat is cut at the control tokens that the *template* wrote, which are told
from a client's by breaking every one in the messages with a sentinel before rendering. The pieces between are
encoded whole, so for text without control tokens the ids equal those of the usual render-and-encode.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox

from common.config.json_file import read_json_object
from common.config.tokenizer_file import build_tokenizer
from common.errors import CheckpointError, InvalidInput
from common.rpc.inference_data import ChatMessage

THINK_START, THINK_END = "<think>", "</think>"
_DOCUMENT, _CONFIG, _TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
_PRIVATE_USE = range(0xE000, 0xF900)


class Tokenizer:
    """A byte-level BPE tokenizer with its chat template."""

    def __init__(
        self, document: dict[str, Any], config: dict[str, Any], template: str | None, directory: Path = Path()
    ) -> None:
        """
        Args:
            document: the content of ``tokenizer.json``.
            config: the content of ``tokenizer_config.json``.
            template: the chat template in Jinja, if the model has one.
            directory: where they are, for errors.

        Raises:
            CheckpointError: one of them is malformed, or not byte-level, so that bytes cannot be told token by token.
        """
        file = directory / _DOCUMENT
        self._full = build_tokenizer(document, file)
        if not _is_byte_level(document.get("decoder")):
            raise CheckpointError(f"{file}: decoder is not ByteLevel")
        self._plain = build_tokenizer({**document, "added_tokens": []}, file)
        added: list[dict[str, Any]] = document.get("added_tokens") or []
        self._control_ids: dict[str, int] = {token["content"]: token["id"] for token in added}
        self._special_ids = frozenset(token["id"] for token in added if token["special"])
        self._vocabulary: dict[int, str] = {i: text for text, i in self._full.get_vocab(with_added_tokens=True).items()}
        self._longest_token_chars = max(len(text) for text in self._vocabulary.values())
        self._bytes: dict[int, bytes] = {}
        self._bos_text = _token_text(config, "bos_token", directory)
        self._eos_text = _token_text(config, "eos_token", directory)
        self._bos_id = self._prefix_id(config, directory / _CONFIG)
        self._cut = _alternatives(self._control_ids)
        self._template = None if template is None else _parsed(template, directory)

    @staticmethod
    def load(directory: Path) -> "Tokenizer | None":
        """From a Hugging Face directory; None when it has no ``tokenizer.json``.

        Raises:
            CheckpointError: a file cannot be read or is not what it should be.
        """
        file = directory / _DOCUMENT
        if not file.exists():
            return None
        config_file = directory / _CONFIG
        config = read_json_object(config_file) if config_file.exists() else {}
        return Tokenizer(read_json_object(file), config, _template_text(directory, config), directory)

    @property
    def longest_token_chars(self) -> int:
        """No token is longer, so `n` characters are at least `n / longest_token_chars` tokens."""
        return self._longest_token_chars

    def token_id(self, text: str) -> int | None:
        """The id of the token that is spelled so, if there is one."""
        return self._full.token_to_id(text) if text else None

    def has_token(self, token_id: int) -> bool:
        """Embedding tables are padded: ids below the vocabulary's size may have no token."""
        return token_id in self._vocabulary

    def encode_text(self, text: str) -> list[int]:
        """A bare prompt: BOS where the model wants one, then the text, in which nothing is a control token."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids if self._bos_id is None else [self._bos_id, *ids]

    def encode_chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Messages through the template, with the turn opened for the assistant.

        Raises:
            InvalidInput: there is no template, or it refuses these messages.
        """
        if self._template is None:
            raise InvalidInput("chat", "messages", "this model has no chat template; send text or token_ids")
        sentinel = _absent_character(message.content for message in messages)
        safe = [{"role": m.role, "content": self._defuse(m, sentinel)} for m in messages]
        try:
            rendered = self._template.render(
                messages=safe, add_generation_prompt=True, bos_token=self._bos_text, eos_token=self._eos_text
            )
        except jinja2.TemplateError as error:
            raise InvalidInput("chat.messages", f"{len(messages)} messages", f"the template says: {error}") from error
        ids: list[int] = []
        for piece in self._cut.split(rendered):
            if piece in self._control_ids:
                ids.append(self._control_ids[piece])
            elif piece:
                ids.extend(self._plain.encode(piece.replace(sentinel, ""), add_special_tokens=False).ids)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to the text, UTF-8; nothing for special tokens and for ids without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            hidden = token_id in self._special_ids or token_id not in self._vocabulary
            known = b"" if hidden else _byte_level_decode(self._vocabulary[token_id])
            self._bytes[token_id] = known
        return known

    def _prefix_id(self, config: dict[str, Any], file: Path) -> int | None:
        wanted = config.get("add_bos_token")
        if wanted is not None and not isinstance(wanted, bool):
            raise CheckpointError(f"{file}: add_bos_token = {wanted!r}: must be true or false")
        if wanted is None:
            ids: list[int] = self._full.encode("", add_special_tokens=True).ids
            return ids[0] if ids and self._vocabulary[ids[0]] == self._bos_text else None
        return self.token_id(self._bos_text) if wanted else None

    def _defuse(self, message: ChatMessage, sentinel: str) -> str:
        """The content with every control token broken by `sentinel`, also one that two contents would form together.

        An assistant's own `</think>` stays: templates cut the reasoning of earlier turns at it.
        """
        kept = (THINK_START, THINK_END) if message.role == "assistant" else ()
        content = message.content
        breaks = {
            match.start() + 1
            for text in self._control_ids
            if text not in kept and len(text) > 1
            for match in re.finditer(f"(?={re.escape(text)})", content)
        }
        first = len(content) - len(content.lstrip())
        last = len(content.rstrip())
        if first < last and not kept:  # a break inside both ends; whitespace outside stays for templates that strip
            breaks |= {first + 1, max(first + 1, last - 1)}
        pieces, start = [], 0
        for position in sorted(breaks):
            pieces.append(content[start:position])
            start = position
        return sentinel.join([*pieces, content[start:]])


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    if decoder["type"] == "Sequence":
        return [part["type"] for part in decoder["decoders"]] == ["ByteLevel"]
    return bool(decoder["type"] == "ByteLevel")


def _token_text(config: dict[str, Any], name: str, directory: Path) -> str:
    """`bos_token` and the like are a string or an object with `content`; without one it is empty."""
    token = config.get(name)
    text = token.get("content") if isinstance(token, dict) else token
    if text is None and token is None:
        return ""
    if not isinstance(text, str):
        raise CheckpointError(f"{directory / _CONFIG}: {name} = {token!r}: must be a text, or an object with content")
    return text


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")" if longest_first else r"(?!)")


def _absent_character(contents: Iterable[str]) -> str:
    present = set().union(*contents)
    for code in _PRIVATE_USE:
        if chr(code) not in present:
            return chr(code)
    raise InvalidInput("chat.messages", "content", "may not use every character of the private use area")


def _environment() -> jinja2.Environment:
    """As transformers renders chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise_exception
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    return environment


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _template_text(directory: Path, config: dict[str, Any]) -> str | None:
    """The model's own file, or what the tokenizer's configuration holds: one template, or several by name."""
    file = directory / _TEMPLATE
    if file.exists():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(one, dict) for one in template):
        template = {one.get("name"): one.get("template") for one in template}.get("default")
    if template is not None and not isinstance(template, str):
        what = "must be a text, or a list of objects with name and template"
        raise CheckpointError(f"{directory / _CONFIG}: chat_template = {str(template)[:80]}: {what}")
    return template


def _parsed(template: str, directory: Path) -> jinja2.Template:
    try:
        return _environment().from_string(template)
    except jinja2.TemplateSyntaxError as error:
        file = directory / _TEMPLATE
        where = file if file.exists() else f"{directory / _CONFIG}: chat_template"
        raise CheckpointError(f"{where}: line {error.lineno}: {error.message}") from error


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level_decode(text: str) -> bytes:
    """A token's bytes. Added tokens are spelled as they are: one character outside the alphabet tells."""
    if all(character in _ALPHABET for character in text):
        return bytes(_ALPHABET[character] for character in text)
    return text.encode()
