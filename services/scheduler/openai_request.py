"""OpenAI's request bodies to ours. Pure; what is not understood is refused by its name, never ignored.

docs/http.md lists every field; the few that are ignored are `IGNORED`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidInput
from common.rpc.inference_data import ChatMessage, GenerateRequest, SamplingOptions, Stopping
from services.scheduler.front_door import MAX_LOGPROBS
from services.scheduler.openai_fields import Absent, biases, get, id_list, is_int, refuse_others, stops

# Fields that change nothing about the answer here, whatever they say.
IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
ABSENT: Absent = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "parallel_tool_calls": (None, True, False),
    "skip_special_tokens": (None, True),
}
SAMPLING = {
    "temperature": float,
    "top_p": float,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "top_k": int,
    "seed": int,
}
_STOPPING = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
_REST = ("model", "stream", "stream_options", "n", "logit_bias", "priority", "tenant", "deadline_ms", "logprobs")
COMMON = frozenset({*_STOPPING, *_REST, *SAMPLING})
CHAT_ONLY = frozenset({"messages", "max_completion_tokens", "top_logprobs"})
COMPLETION_ONLY = frozenset({"prompt"})
_STREAM_ABSENT: Absent = {"include_obfuscation": (None, False)}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# What a client's library sends back of an assistant's earlier message.
_MESSAGE_ABSENT: Absent = {
    "refusal": (None,),
    "audio": (None,),
    "function_call": (None,),
    "tool_calls": (None, []),
    "annotations": (None, []),
}


@dataclass(frozen=True, slots=True)
class OpenAiRequest:
    request: GenerateRequest
    stream: bool
    include_usage: bool


def chat_request(body: Mapping[str, Any]) -> OpenAiRequest:
    """The body of ``/v1/chat/completions``.

    Raises:
        InvalidInput
    """
    refuse_others(body, COMMON | CHAT_ONLY | IGNORED, ABSENT)
    messages = get(body, "messages", list)
    if messages is None:
        raise InvalidInput("messages", "none", "at least one message")
    chat = tuple(_message(f"messages[{i}]", message) for i, message in enumerate(messages))
    completion, max_tokens = get(body, "max_completion_tokens", int), get(body, "max_tokens", int)
    if completion is not None and max_tokens is not None:
        raise InvalidInput("max_tokens", max_tokens, "not beside max_completion_tokens, which says the same")
    return _request(body, completion if max_tokens is None else max_tokens, _chat_logprobs(body), chat=chat)


def completion_request(body: Mapping[str, Any]) -> OpenAiRequest:
    """The body of ``/v1/completions``; one prompt, as text or token ids.

    Raises:
        InvalidInput
    """
    refuse_others(body, COMMON | COMPLETION_ONLY | IGNORED, ABSENT)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    max_tokens, logprobs = get(body, "max_tokens", int), get(body, "logprobs", int)
    max_tokens = 16 if max_tokens is None else max_tokens  # OpenAI's default of this call
    if isinstance(prompt, str):
        return _request(body, max_tokens, logprobs, text=prompt)
    if isinstance(prompt, list) and all(is_int(one) for one in prompt):
        return _request(body, max_tokens, logprobs, token_ids=tuple(prompt))
    raise InvalidInput("prompt", prompt, "one text or one list of token ids")


def in_body(error: InvalidInput, body: Mapping[str, Any]) -> InvalidInput:
    """The front door's refusal with the field's name in `body`, where the client can find it."""
    field = error.field
    for section in ("sampling.", "stopping.", "prompt.chat."):
        field = field.removeprefix(section)
    if field.startswith("prompt."):
        field = "prompt"
    renamed = {"request_id": "X-Request-Id"}
    if "messages" in body:
        renamed |= {"prompt": "messages"}
    if body.get("max_completion_tokens") is not None:
        renamed["max_tokens"] = "max_completion_tokens"
    return type(error)(renamed.get(field, field), error.value, error.limit)


def _request(
    body: Mapping[str, Any],
    max_tokens: int | None,
    logprobs: int | None,
    *,
    text: str | None = None,
    chat: tuple[ChatMessage, ...] | None = None,
    token_ids: tuple[int, ...] | None = None,
) -> OpenAiRequest:
    options = {name: value for name, kind in SAMPLING.items() if (value := get(body, name, kind)) is not None}
    request = GenerateRequest(
        text=text,
        chat=chat,
        token_ids=token_ids,
        model=get(body, "model", str) or "",
        sampling=SamplingOptions(logit_bias=biases(get(body, "logit_bias", dict) or {}), **options),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=get(body, "min_tokens", int) or 0,
            stop=stops(body.get("stop")),
            stop_token_ids=_stop_ids(body),
            ignore_eos=bool(get(body, "ignore_eos", bool)),
        ),
        logprobs=logprobs,
        n=get(body, "n", int),
        tenant=get(body, "tenant", str) or "",
        priority=get(body, "priority", int) or 0,
        deadline_ms=get(body, "deadline_ms", int),
    )
    stream = bool(get(body, "stream", bool))
    return OpenAiRequest(request, stream, _include_usage(body, stream=stream))


def _chat_logprobs(body: Mapping[str, Any]) -> int | None:
    """A flag and a number there, one number here."""
    wanted, top = get(body, "logprobs", bool), get(body, "top_logprobs", int)
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidInput("top_logprobs", top, f"0 to {MAX_LOGPROBS}")
    if top and not wanted:
        raise InvalidInput("top_logprobs", top, "needs logprobs: true")
    return (top or 0) if wanted else None


def _include_usage(body: Mapping[str, Any], *, stream: bool) -> bool:
    options = get(body, "stream_options", dict)
    if options is None:
        return False
    if not stream:
        raise InvalidInput("stream_options", options, "needs stream: true")
    refuse_others(options, {"include_usage"}, _STREAM_ABSENT, below="stream_options.")
    return bool(get(options, "include_usage", bool, below="stream_options."))


def _stop_ids(body: Mapping[str, Any]) -> tuple[int, ...]:
    return id_list("stop_token_ids", get(body, "stop_token_ids", list) or [])


def _message(field: str, message: object) -> ChatMessage:
    if not isinstance(message, dict):
        raise InvalidInput(field, message, "an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidInput(f"{field}.role", role, f"one of {', '.join(_ROLES)}")
    refuse_others(message, {"role", "content", "name"}, _MESSAGE_ABSENT, below=f"{field}.")
    content = message.get("content")
    if isinstance(content, str):
        return ChatMessage(_ROLES[role], content)
    if not isinstance(content, list):
        raise InvalidInput(f"{field}.content", content, "a text or a list of text parts")
    return ChatMessage(_ROLES[role], "".join(_part(f"{field}.content[{i}]", part) for i, part in enumerate(content)))


def _part(field: str, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise InvalidInput(field, part, "a text part: type text and a text")
    refuse_others(part, {"type", "text"}, {}, below=f"{field}.")
    return str(part["text"])
