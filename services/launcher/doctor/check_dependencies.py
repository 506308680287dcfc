"""Redis and NATS: there, and set up so that hints do not vanish under load. Pure."""

from collections.abc import Iterator

from common.config.cluster import EMBEDDED
from services.launcher.doctor.check_node import size
from services.launcher.doctor.facts import IN_A_POD, UNTRUSTED, Facts, Nats, Redis
from services.launcher.doctor.finding import Finding, error, warning

_REDIS_VERSION = (6, 2)
_AUTHORITY = "a certificate of an authority that is known here"
_NATS_VERSION = (2, 9)
_PAYLOAD_BYTES = 64 << 10
_SKEW_ERROR_S, _SKEW_WARNING_S = 30.0, 1.0


def check_dependencies(facts: Facts) -> Iterator[Finding]:
    for name, url in (("redis", facts.config.redis.url), ("nats", facts.config.nats.url)):
        if url == EMBEDDED and facts.node.environment.get(IN_A_POD):
            yield error(f"{name}-embedded", f"{name}.url = {EMBEDDED}", "an address; only `tandem up` starts its own",
                        f"{name}.mode")  # fmt: skip
    if facts.redis is not None:
        yield from _redis(facts.redis)
    if facts.nats is not None:
        yield from _nats(facts.nats)


def _redis(redis: Redis) -> Iterator[Finding]:
    if redis.refused:
        yield error("redis-credentials", redis.error, "user and password that it takes", "redis.external.urlSecret")
        return
    if UNTRUSTED in redis.error:
        yield error("redis-untrusted", redis.error, _AUTHORITY, "tls.caSecret")
        return
    if redis.error:
        yield error("redis-unreachable", redis.error, "an answer within redis.timeout_s", "redis.external.urlSecret")
        return
    if _version(redis.version) < _REDIS_VERSION:
        yield error("redis-version", f"version {redis.version}", "6.2 or later", "redis.external.urlSecret")
    if redis.is_cluster:
        limit = "one server, or a proxy before the cluster"
        yield error("redis-cluster", "cluster mode is on", limit, "redis.external.urlSecret")
    if redis.is_replica:
        yield error("redis-replica", "it is a read-only replica", "the primary", "redis.external.urlSecret")
    if redis.eviction != "noeviction" and redis.memory_limit_bytes:
        found = f"maxmemory-policy {redis.eviction} at {size(redis.memory_limit_bytes)}"
        limit = "noeviction: it would drop worker leases, and instances would leave the cluster"
        yield error("redis-eviction", found, limit, "redis.external.urlSecret")
    if redis.writes_log:
        limit = "everything in it is rebuilt by its writers; the log only costs time"
        yield warning("redis-log", "appendonly is on", limit, "redis.mode")
    skew_s = abs(redis.clock_skew_s)
    if skew_s > _SKEW_WARNING_S:
        make = error if skew_s > _SKEW_ERROR_S else warning
        limit = f"{_SKEW_WARNING_S:g} s: certificates, logs and traces compare clocks"
        yield make("clock-skew", f"{skew_s:.1f} s from Redis", limit, "node: chrony or another NTP client")


def _nats(nats: Nats) -> Iterator[Finding]:
    if nats.refused:
        yield error("nats-credentials", nats.error, "user and password that it takes", "nats.external.urlSecret")
        return
    if UNTRUSTED in nats.error:
        yield error("nats-untrusted", nats.error, _AUTHORITY, "tls.caSecret")
        return
    if nats.error:
        yield error("nats-unreachable", nats.error, "an answer within nats.timeout_s", "nats.external.urlSecret")
        return
    if _version(nats.version) < _NATS_VERSION:
        yield error("nats-version", f"version {nats.version}", "2.9 or later", "nats.external.urlSecret")
    if nats.max_payload_bytes < _PAYLOAD_BYTES:
        found, limit = f"max_payload {size(nats.max_payload_bytes)}", f"at least {size(_PAYLOAD_BYTES)}"
        yield error("nats-payload", found, limit, "nats.external.urlSecret")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-")[0].split(".")[:2] if part.isdecimal())
