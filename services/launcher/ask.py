"""`tandem generate` and `tandem chat`: a client in the terminal."""

import asyncio
import select
import signal
import socket
import sys
import termios
import time
from dataclasses import dataclass, field

from rich.console import Console

from common.errors import InvalidInput
from common.rpc.clients import InferenceClient
from common.rpc.inference_data import ChatMessage, GenerateRequest, Ledger, SamplingOptions, Stopping, Usage
from services.launcher.run_directory import find_endpoint


@dataclass(slots=True)
class Answer:
    """What one request gave, with the times at which the client saw it."""

    request_id: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    ledger: Ledger = field(default_factory=Ledger)
    first_token_s: float = 0.0  # after sending
    total_s: float = 0.0


async def ask(client: InferenceClient, request: GenerateRequest, *, show: bool, answer: Answer | None = None) -> Answer:
    """Send one request of one choice and, with `show`, print its text as it comes.

    Args:
        answer: filled as it comes, for who wants what there was of one that was cut.
    """
    answer = answer or Answer()
    begun_s = time.monotonic()
    try:
        async for delta in client.generate(request):
            if not answer.first_token_s and delta.token_ids:
                answer.first_token_s = time.monotonic() - begun_s
            answer.request_id = delta.request_id
            answer.text += delta.text
            answer.token_ids += delta.token_ids
            answer.usage = delta.usage or answer.usage
            answer.ledger = delta.ledger or answer.ledger
            if show and delta.text:
                sys.stdout.write(delta.text)
                sys.stdout.flush()
    finally:  # an error gets a line of its own
        if show:
            sys.stdout.write("\n")
            sys.stdout.flush()
    answer.total_s = time.monotonic() - begun_s
    return answer


def scheduler_address(at: str) -> str:
    """The address that was given, or the first scheduler of the cluster that runs here."""
    if at and ":" not in at:
        raise InvalidInput("--at", at, "host:port")
    return at or find_endpoint().schedulers[0]


def require_text(text: str) -> None:
    """
    Raises:
        InvalidInput: bytes from the terminal or the shell were not text.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput("text", ascii(text[error.start : error.start + 1]), "UTF-8") from error


def run_generate(
    text: str, at: str, max_tokens: int, temperature: float | None, seed: int | None, *, stats: bool
) -> None:
    require_text(text)
    request = GenerateRequest(
        text=text,
        sampling=SamplingOptions(temperature=temperature, seed=seed),
        stopping=Stopping(max_tokens=max_tokens),
    )

    answer = Answer()

    async def once() -> None:
        async with InferenceClient(scheduler_address(at)) as client:
            sys.stdout.write(text)
            await ask(client, request, show=True, answer=answer)

    try:
        asyncio.run(once())  # Ctrl-C leaves the stream, which cancels the request on the server
    finally:
        if stats and answer.total_s:
            _print_stats(answer)
        elif answer.request_id and (stats or sys.stderr.isatty()):
            told = f"tandem why {answer.request_id}" + (f" --at {at}" if at else "")
            Console(stderr=True).print(told, style="dim", highlight=False, soft_wrap=True)


def run_chat(at: str, max_tokens: int, temperature: float | None, seed: int | None) -> None:
    """The prompt is read between two runs of the event loop: nothing then stands between Ctrl-C and the end."""
    address, turns = scheduler_address(at), list[ChatMessage]()
    sampling, stopping = SamplingOptions(temperature=temperature, seed=seed), Stopping(max_tokens=max_tokens)

    async def reply() -> Answer:
        async with InferenceClient(address) as client:
            return await ask(
                client, GenerateRequest(chat=tuple(turns), sampling=sampling, stopping=stopping), show=True
            )

    while said := _said():
        try:
            require_text(said)
        except InvalidInput as error:
            Console(stderr=True).print(f"not sent: {error}", highlight=False, markup=False, soft_wrap=True)
            continue
        turns.append(ChatMessage("user", said))
        turns.append(ChatMessage("assistant", asyncio.run(reply()).text))
    if sys.stdin.isatty():  # what was pasted behind an empty line is not for the shell to run
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _said() -> str:
    """What was typed; empty at an empty line or the end of input."""
    try:
        if sys.stdin.isatty():
            sys.stdout.write("you> ")
            sys.stdout.flush()
            _wait_for_line()
            return sys.stdin.readline().strip()
        return input("you> ").strip()
    except EOFError:
        return ""
    except KeyboardInterrupt:
        sys.stdout.write("\n")  # the shell's next prompt gets a line of its own
        raise


def _wait_for_line() -> None:
    """Until the terminal has a line. A plain read would not see a Ctrl-C that came between the prompt and the read."""
    ours, signals = socket.socketpair()
    with ours, signals:
        signals.setblocking(False)
        before = signal.set_wakeup_fd(signals.fileno())
        try:
            while sys.stdin not in select.select([sys.stdin, ours], [], [])[0]:
                ours.recv(1)  # whose handler has run by now, and ends the command if it is to
        finally:
            signal.set_wakeup_fd(before)


def _print_stats(answer: Answer) -> None:
    usage = answer.usage
    console = Console(stderr=True)
    console.print(
        f"{answer.request_id}: {usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.completion_tokens} generated, {usage.accepted_tokens} of {usage.drafted_tokens} drafts accepted, "
        f"first token after {answer.first_token_s * 1000:.0f} ms, {answer.total_s:.2f} s in all",
        highlight=False,
        soft_wrap=True,
    )
    for part, seconds in answer.ledger.entries:
        console.print(f"  {part:18} {seconds * 1000:10.1f} ms", highlight=False, soft_wrap=True)
