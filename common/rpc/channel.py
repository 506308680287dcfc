"""Client channels, and the message size that both ends agree on."""

from collections.abc import Sequence

import grpc

# The largest message is a request: a prompt of the longest context as text or ids, or its resume. 163,840 tokens of
# 128 characters in UTF-8 stay below it.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

Options = Sequence[tuple[str, int]]

# A peer that is stopped answers no ping: the transport is closed after 5 + 3 s, which ends its calls as UNAVAILABLE.
KEEPALIVE_TIME_MS = 5_000
KEEPALIVE_TIMEOUT_MS = 3_000


def client_options(keepalive_time_ms: int = KEEPALIVE_TIME_MS) -> Options:
    return (
        ("grpc.keepalive_time_ms", keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),  # a new channel to a restarted peer does not inherit its back-off
        ("grpc.enable_http_proxy", 0),
    )


def open_channel(address: str, options: Options | None = None) -> grpc.aio.Channel:
    """A channel to `address` (host:port). Connects on first use; close it with `await channel.close()`."""
    return grpc.aio.insecure_channel(address, options=client_options() if options is None else options)
