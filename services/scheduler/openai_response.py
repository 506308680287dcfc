"""Our deltas to OpenAI's answers: chunks of a stream, or one object. Pure."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from common.errors import InvalidInput, Overloaded, TandemError
from common.request import FinishReason, PositionLogprobs
from common.rpc.inference_data import Delta, ModelInfo, Usage
from services.scheduler.detokenizer import Detokenizer


class Spelling:
    """Tokens of one answer as bytes, and where in its choice's text each begins."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self.spell = spell
        self._texts: dict[int, tuple[Detokenizer, int]] = {}  # by choice, with its characters so far

    def offsets(self, choice: int, token_ids: Sequence[int]) -> list[int]:
        """Of the choice's next tokens, in characters; one that completes a character begins before it."""
        detokenizer, chars = self._texts.get(choice) or (Detokenizer(self.spell), 0)
        offsets = []
        for token_id in token_ids:
            offsets.append(chars)
            chars += len(detokenizer.feed(token_id))
        self._texts[choice] = (detokenizer, chars)
        return offsets


@dataclass(frozen=True, slots=True)
class Heading:
    """What every object of one answer says of itself."""

    chat: bool
    model: str
    created_s: int
    spelling: Spelling

    def ident(self, request_id: str) -> str:
        return f"{'chatcmpl' if self.chat else 'cmpl'}-{request_id}"


@dataclass(slots=True)
class Whole:
    """Deltas of an answer that is not streamed, by choice."""

    request_id: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[tuple[int, PositionLogprobs]]] = field(default_factory=dict)
    finish: dict[int, FinishReason] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)

    def add(self, delta: Delta) -> None:
        self.request_id = delta.request_id
        self.texts[delta.choice] = self.texts.get(delta.choice, "") + delta.text
        self.logprobs.setdefault(delta.choice, []).extend(delta.logprobs)
        if delta.finish_reason is not None:
            self.finish[delta.choice] = delta.finish_reason
        if delta.usage is not None:
            self.usage = delta.usage


def whole_object(heading: Heading, whole: Whole, *, with_logprobs: bool) -> dict[str, Any]:
    choices = []
    for index in sorted(whole.texts):
        logprobs = _logprobs(heading, index, whole.logprobs[index]) if with_logprobs else None
        choice = {"index": index, "logprobs": logprobs, "finish_reason": whole.finish[index].value}
        text = whole.texts[index]
        choice |= {"message": {"role": "assistant", "content": text}} if heading.chat else {"text": text}
        choices.append(choice)
    return {
        "id": heading.ident(whole.request_id),
        "object": "chat.completion" if heading.chat else "text_completion",
        "created": heading.created_s,
        "model": heading.model,
        "choices": choices,
        "usage": usage_object(whole.usage),
    }


def chunk_object(
    heading: Heading, delta: Delta, *, first: bool, with_logprobs: bool, usage_follows: bool
) -> dict[str, Any]:
    """One chunk of a stream; `first` of its choice. Where usage follows in one of its own it is null here."""
    logprobs = _logprobs(heading, delta.choice, delta.logprobs) if with_logprobs and delta.logprobs else None
    finish = None if delta.finish_reason is None else delta.finish_reason.value
    choice: dict[str, Any] = {"index": delta.choice, "logprobs": logprobs, "finish_reason": finish}
    if heading.chat:
        role = {"role": "assistant"} if first else {}
        choice["delta"] = role | ({"content": delta.text} if delta.text or first else {})
    else:
        choice["text"] = delta.text
    chunk = _chunk(heading, delta.request_id) | {"choices": [choice]}
    return chunk | {"usage": None} if usage_follows else chunk


def usage_chunk(heading: Heading, request_id: str, usage: Usage) -> dict[str, Any]:
    return _chunk(heading, request_id) | {"choices": [], "usage": usage_object(usage)}


def model_object(info: ModelInfo, created_s: int) -> dict[str, Any]:
    entry = {"id": info.model, "object": "model", "created": created_s, "owned_by": "tandem"}
    return entry | {"max_model_len": info.context_tokens}


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }


def error_object(error: TandemError) -> dict[str, Any]:
    kind = "invalid_request_error" if isinstance(error, InvalidInput) else "server_error"
    if isinstance(error, Overloaded):
        kind = "rate_limit_error"
    param = error.field if isinstance(error, InvalidInput) else None
    return _error(str(error), kind, param, error.reason.lower())


def http_error_object(what: str, status: int) -> dict[str, Any]:
    """For what is no call of ours, such as 404 for a path, 405 for a method, 400 for what is no HTTP at all."""
    phrase = HTTPStatus(status).phrase.lower()
    return _error(f"{what}: {phrase}", "invalid_request_error", None, phrase.replace(" ", "_"))


def _error(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def sse(document: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def _chunk(heading: Heading, request_id: str) -> dict[str, Any]:
    return {
        "id": heading.ident(request_id),
        "object": "chat.completion.chunk" if heading.chat else "text_completion",
        "created": heading.created_s,
        "model": heading.model,
    }


def _logprobs(heading: Heading, choice: int, positions: Sequence[tuple[int, PositionLogprobs]]) -> dict[str, Any]:
    if heading.chat:
        content = []
        for token_id, position in positions:
            entry = _spelled(heading, token_id, position.chosen)
            content.append(entry | {"top_logprobs": [_spelled(heading, i, value) for i, value in position.top]})
        return {"content": content}
    tokens = [_text(heading, token_id) for token_id, _ in positions]
    return {
        "tokens": tokens,
        "token_logprobs": [position.chosen for _, position in positions],
        "top_logprobs": [{_text(heading, i): value for i, value in position.top} for _, position in positions],
        "text_offset": heading.spelling.offsets(choice, [token_id for token_id, _ in positions]),
    }


def _spelled(heading: Heading, token_id: int, logprob: float) -> dict[str, Any]:
    return {"token": _text(heading, token_id), "logprob": logprob, "bytes": list(heading.spelling.spell(token_id))}


def _text(heading: Heading, token_id: int) -> str:
    return heading.spelling.spell(token_id).decode(errors="replace")
