"""OpenAI's request bodies to ours. Pure; what is not understood is refused by its name, never ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidInput
from common.rpc.inference_data import ChatMessage, GenerateRequest, SamplingOptions, Stopping

# Fields that change nothing about the answer here.
_IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
# Fields that are understood at one value only: the one that means "nothing".
_ABSENT: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "echo": (None, False),
    "suffix": (None, ""),
    "best_of": (None, 1),
    "parallel_tool_calls": (None, True, False),
}
_SAMPLING = {
    "temperature": float,
    "top_p": float,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "top_k": int,
    "seed": int,
}
_COMMON = frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "n",
        "stop",
        "logit_bias",
        "max_tokens",
        "min_tokens",
        "stop_token_ids",
        "ignore_eos",
        "priority",
        "tenant",
        "deadline_ms",
        "logprobs",
    }
)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


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
    _refuse_unknown(body, _COMMON | {"messages", "max_completion_tokens", "top_logprobs"})
    messages = _get(body, "messages", list)
    if messages is None:
        raise InvalidInput("messages", "none", "at least one message")
    logprobs = None
    if _get(body, "logprobs", bool):
        logprobs = _get(body, "top_logprobs", int) or 0
    elif body.get("top_logprobs"):
        raise InvalidInput("top_logprobs", body["top_logprobs"], "needs logprobs: true")
    chat = tuple(_message(i, message) for i, message in enumerate(messages))
    completion = _get(body, "max_completion_tokens", int)
    max_tokens = completion if completion is not None else _get(body, "max_tokens", int)
    return _request(body, max_tokens, logprobs, chat=chat)


def completion_request(body: Mapping[str, Any]) -> OpenAiRequest:
    """The body of ``/v1/completions``; one prompt, as text or token ids.

    Raises:
        InvalidInput
    """
    _refuse_unknown(body, _COMMON | {"prompt"})
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    max_tokens, logprobs = _get(body, "max_tokens", int), _get(body, "logprobs", int)
    max_tokens = 16 if max_tokens is None else max_tokens  # OpenAI's default of this call
    if isinstance(prompt, str):
        return _request(body, max_tokens, logprobs, text=prompt)
    if isinstance(prompt, list) and all(_is_int(one) for one in prompt):
        return _request(body, max_tokens, logprobs, token_ids=tuple(prompt))
    raise InvalidInput("prompt", prompt, "one text or one list of token ids")


def _request(
    body: Mapping[str, Any],
    max_tokens: int | None,
    logprobs: int | None,
    *,
    text: str | None = None,
    chat: tuple[ChatMessage, ...] | None = None,
    token_ids: tuple[int, ...] | None = None,
) -> OpenAiRequest:
    stop = body.get("stop")
    stops = (stop,) if isinstance(stop, str) else tuple(_strings("stop", stop or []))
    options = {name: value for name, kind in _SAMPLING.items() if (value := _get(body, name, kind)) is not None}
    stream_options = _get(body, "stream_options", dict) or {}
    request = GenerateRequest(
        text=text,
        chat=chat,
        token_ids=token_ids,
        model=_get(body, "model", str) or "",
        sampling=SamplingOptions(logit_bias=_bias(_get(body, "logit_bias", dict) or {}), **options),
        stopping=Stopping(
            max_tokens=max_tokens,
            min_tokens=_get(body, "min_tokens", int) or 0,
            stop=stops,
            stop_token_ids=tuple(_ints("stop_token_ids", _get(body, "stop_token_ids", list) or [])),
            ignore_eos=bool(_get(body, "ignore_eos", bool)),
        ),
        logprobs=logprobs,
        n=_get(body, "n", int),
        tenant=_get(body, "tenant", str) or "",
        priority=_get(body, "priority", int) or 0,
        deadline_ms=_get(body, "deadline_ms", int),
    )
    return OpenAiRequest(request, bool(_get(body, "stream", bool)), bool(stream_options.get("include_usage")))


def _message(index: int, message: object) -> ChatMessage:
    field = f"messages[{index}]"
    if not isinstance(message, dict):
        raise InvalidInput(field, message, "an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidInput(f"{field}.role", role, f"one of {', '.join(_ROLES)}")
    content = message.get("content")
    if isinstance(content, str):
        return ChatMessage(_ROLES[role], content)
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        texts = [text for text in parts if isinstance(text, str)]
        if len(texts) == len(content):
            return ChatMessage(_ROLES[role], "".join(texts))
    raise InvalidInput(f"{field}.content", content, "a text or a list of text parts")


def _refuse_unknown(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in _ABSENT:
            if value not in _ABSENT[name]:
                raise InvalidInput(name, value, "not supported here")
        elif name not in known and name not in _SAMPLING and name not in _IGNORED:
            raise InvalidInput(name, value, "no such field")


def _get(body: Mapping[str, Any], name: str, kind: type) -> Any:  # noqa: ANN401
    """The field's value of this JSON type; None when absent or null."""
    value = body.get(name)
    if value is None:
        return None
    if kind is float and _is_int(value):
        try:
            return float(value)
        except OverflowError as error:
            raise InvalidInput(name, value, "must fit a float") from error
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InvalidInput(name, value, f"must be {kind.__name__}")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bias(bias: Mapping[str, Any]) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in bias.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("logit_bias", bias, "token ids to numbers") from error


def _strings(name: str, values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidInput(name, values, "a text or a list of texts")
    return values


def _ints(name: str, values: list[Any]) -> list[int]:
    if not all(_is_int(value) for value in values):
        raise InvalidInput(name, values, "a list of numbers")
    return values
