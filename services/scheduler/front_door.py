"""Everything that can be checked of a request before any work. Pure; every refusal names field, value and limit."""

import math
from dataclasses import dataclass
from types import MappingProxyType

from common.errors import InvalidInput, UnknownModel
from common.request import Limits, Sampling
from common.rpc.inference_data import GenerateRequest, SamplingOptions, Stopping
from services.scheduler.model_card import ModelCard
from services.scheduler.sampling_ranges import MAX_TOP_K, RANGES
from services.scheduler.tokenizer import Tokenizer

MAX_CHOICES = 16
MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_IDS = 64
MAX_BIASED_TOKENS = 1024
MAX_PRIORITY = 10
MAX_NAME_CHARS = 128
MAX_DEADLINE_MS = 7 * 24 * 3600 * 1000
ROLES = ("system", "user", "assistant")
_SEEDS = 2**63 - MAX_CHOICES


@dataclass(frozen=True, slots=True)
class ValidRequest:
    """A request that workers can take as it is. Choice `i` has seed `sampling.seed + i`."""

    request_id: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    stop: tuple[str, ...]
    logprobs: int | None
    n: int
    tenant: str
    priority: int
    deadline_ms: int | None


def validate(
    request: GenerateRequest, card: ModelCard, tokenizer: Tokenizer | None, *, fresh_id: str, fresh_seed: int
) -> ValidRequest:
    """
    Args:
        fresh_id: taken when the client named none.
        fresh_seed: likewise.

    Raises:
        InvalidInput: with field, value and limit.
        UnknownModel: another model is asked for.
    """
    if request.model and request.model != card.name:
        raise UnknownModel("model", request.model, f"served here: {card.name}")
    _check_name("request_id", request.request_id)
    _check_name("tenant", request.tenant)
    n = 1 if request.n is None else request.n
    _check_int("n", n, 1, MAX_CHOICES)
    _check_int("priority", request.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if request.logprobs is not None:
        _check_int("logprobs", request.logprobs, 0, MAX_LOGPROBS)
    if request.deadline_ms is not None:
        _check_int("deadline_ms", request.deadline_ms, 1, MAX_DEADLINE_MS)
    sampling = _sampling(request.sampling, card, tokenizer, fresh_seed)
    _check_stopping(request.stopping, card, tokenizer)
    token_ids = _prompt(request, card, tokenizer)
    return ValidRequest(
        request_id=request.request_id or fresh_id,
        token_ids=token_ids,
        sampling=sampling,
        limits=_limits(request.stopping, len(token_ids), card),
        stop=request.stopping.stop,
        logprobs=request.logprobs,
        n=n,
        tenant=request.tenant,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
    )


def _prompt(request: GenerateRequest, card: ModelCard, tokenizer: Tokenizer | None) -> tuple[int, ...]:
    given = [
        name
        for name, value in (("text", request.text), ("chat", request.chat), ("token_ids", request.token_ids))
        if value is not None
    ]
    if len(given) != 1:
        raise InvalidInput("prompt", ", ".join(given) or "none", "exactly one of text, chat, token_ids")
    if request.token_ids is not None:
        if not request.token_ids:
            raise InvalidInput("prompt.token_ids", "[]", "at least one token")
        _check_length(len(request.token_ids), card)
        known = set(request.token_ids)
        if not all(0 <= token_id < card.vocab_tokens and _has_token(token_id, tokenizer) for token_id in known):
            for i, token_id in enumerate(request.token_ids):
                _check_token(f"prompt.token_ids[{i}]", token_id, card, tokenizer)
        return request.token_ids
    if tokenizer is None:
        raise InvalidInput(f"prompt.{given[0]}", "text", "this model has no tokenizer; send token_ids")
    if request.text is not None:
        if not request.text:
            raise InvalidInput("prompt.text", '""', "at least one character")
        _check_chars("prompt.text", len(request.text), card, tokenizer)
        _check_text("prompt.text", request.text)
        token_ids = tokenizer.encode_text(request.text)
    else:
        chat = request.chat or ()
        if not chat:
            raise InvalidInput("prompt.chat.messages", "[]", "at least one message")
        for i, message in enumerate(chat):
            if message.role not in ROLES:
                raise InvalidInput(f"prompt.chat.messages[{i}].role", message.role, f"one of {', '.join(ROLES)}")
            _check_text(f"prompt.chat.messages[{i}].content", message.content)
        _check_chars("prompt.chat", sum(len(message.content) for message in chat), card, tokenizer)
        token_ids = tokenizer.encode_chat(chat)
    if not token_ids:
        raise InvalidInput(f"prompt.{given[0]}", "0 tokens", "at least one token")
    _check_length(len(token_ids), card)
    return tuple(token_ids)


def _check_length(tokens: int, card: ModelCard) -> None:
    if tokens >= card.context_tokens:
        raise InvalidInput(
            "prompt",
            f"{tokens} tokens",
            f"at most {card.context_tokens - 1}: prompt and completion share a context of {card.context_tokens}",
        )


def _check_chars(field: str, chars: int, card: ModelCard, tokenizer: Tokenizer) -> None:
    """Refuse what cannot fit without spending the time to encode it."""
    limit = card.context_tokens * tokenizer.longest_token_chars
    if chars > limit:
        raise InvalidInput(
            field, f"{chars} characters", f"no more than {limit} fit a context of {card.context_tokens} tokens"
        )


def _check_text(field: str, text: str) -> None:
    """JSON can spell halves of characters, which have no UTF-8 and so no tokens."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, repr(text), f"a lone surrogate at character {error.start}") from error


def _check_token(field: str, token_id: int, card: ModelCard, tokenizer: Tokenizer | None) -> None:
    if not 0 <= token_id < card.vocab_tokens:
        raise InvalidInput(field, token_id, f"0 to {card.vocab_tokens - 1}")
    if not _has_token(token_id, tokenizer):
        raise InvalidInput(field, token_id, "in the vocabulary's padding: no token has this id")


def _has_token(token_id: int, tokenizer: Tokenizer | None) -> bool:
    return tokenizer is None or tokenizer.has_token(token_id)


def _sampling(options: SamplingOptions, card: ModelCard, tokenizer: Tokenizer | None, fresh_seed: int) -> Sampling:
    default = card.default_sampling
    values: dict[str, float] = {}
    for name, allowed in RANGES.items():
        given = getattr(options, name)
        value = getattr(default, name) if given is None else given
        if not allowed.holds(value):
            raise InvalidInput(f"sampling.{name}", value, str(allowed))
        values[name] = value
    top_k = default.top_k if options.top_k is None else options.top_k
    _check_int("sampling.top_k", top_k, 0, MAX_TOP_K)
    if len(options.logit_bias) > MAX_BIASED_TOKENS:
        raise InvalidInput(
            "sampling.logit_bias", f"{len(options.logit_bias)} tokens", f"at most {MAX_BIASED_TOKENS} tokens"
        )
    for token_id, bias in options.logit_bias.items():
        _check_token("sampling.logit_bias", token_id, card, tokenizer)
        if not (math.isfinite(bias) and -100 <= bias <= 100):
            raise InvalidInput(f"sampling.logit_bias[{token_id}]", bias, "[-100, 100]")
    seed = fresh_seed if options.seed is None else options.seed
    _check_int("sampling.seed", seed, -(2**63), _SEEDS)
    bias_by_token = MappingProxyType(dict(options.logit_bias))
    return Sampling(top_k=top_k, logit_bias=bias_by_token, seed=seed, **values)


def _check_stopping(stopping: Stopping, card: ModelCard, tokenizer: Tokenizer | None) -> None:
    if stopping.max_tokens is not None and stopping.max_tokens < 1:
        raise InvalidInput("stopping.max_tokens", stopping.max_tokens, "at least 1")
    if stopping.min_tokens < 0:
        raise InvalidInput("stopping.min_tokens", stopping.min_tokens, "at least 0")
    if stopping.max_tokens is not None and stopping.min_tokens > stopping.max_tokens:
        raise InvalidInput("stopping.min_tokens", stopping.min_tokens, f"at most max_tokens = {stopping.max_tokens}")
    if len(stopping.stop) > MAX_STOPS:
        raise InvalidInput("stopping.stop", f"{len(stopping.stop)} strings", f"at most {MAX_STOPS}")
    if stopping.stop and tokenizer is None:
        raise InvalidInput("stopping.stop", stopping.stop[0], "this model has no tokenizer; use stop_token_ids")
    for i, stop in enumerate(stopping.stop):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidInput(f"stopping.stop[{i}]", stop, f"1 to {MAX_STOP_CHARS} characters")
        _check_text(f"stopping.stop[{i}]", stop)
    if len(stopping.stop_token_ids) > MAX_STOP_IDS:
        raise InvalidInput("stopping.stop_token_ids", f"{len(stopping.stop_token_ids)} ids", f"at most {MAX_STOP_IDS}")
    for i, token_id in enumerate(stopping.stop_token_ids):
        _check_token(f"stopping.stop_token_ids[{i}]", token_id, card, tokenizer)


def _limits(stopping: Stopping, prompt_tokens: int, card: ModelCard) -> Limits:
    """The context ends every completion, so `max_tokens` is cut to what is left of it."""
    left = card.context_tokens - prompt_tokens
    max_tokens = left if stopping.max_tokens is None else min(stopping.max_tokens, left)
    eos = frozenset() if stopping.ignore_eos else card.eos_token_ids
    return Limits(max_tokens, min(stopping.min_tokens, max_tokens), eos | frozenset(stopping.stop_token_ids))


def _check_int(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidInput(field, value, f"{low} to {high}")


def _check_name(field: str, value: str) -> None:
    if len(value) > MAX_NAME_CHARS:
        raise InvalidInput(field, value, f"at most {MAX_NAME_CHARS} characters")
    if not value.isprintable():
        raise InvalidInput(field, repr(value), "printable characters only")
