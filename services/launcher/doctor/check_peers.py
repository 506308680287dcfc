"""Whether latent may move between this pod's pool and the instances that run. Pure."""

from collections.abc import Iterator
from dataclasses import fields

from common.kv.hashing import HASH_CONTRACT
from common.request import Compatibility
from services.launcher.doctor.facts import Facts
from services.launcher.doctor.finding import Finding, error, warning

_SETTINGS = {
    "model_fingerprint": "model.store.directory",
    "kv_dtype": "layout.dtype",
    "block_tokens": "layout.blockTokens",
    "latent_layers": "model.store.directory",
    "latent_width": "model.store.directory",
    "draft_tokens": "layout.draftTokens",
}


def check_peers(facts: Facts) -> Iterator[Finding]:
    """Against what this file says; and the instances against each other."""
    kind = "gpu" if facts.config.model.device == "cuda" else "cpu"
    settings = {**_SETTINGS, "hash_contract": f"images.{kind}.tag"}
    for peer in facts.peers:
        if peer.compatibility is None:
            found = f"{peer.instance} does not answer: {peer.error}"
            yield warning("peer-silent", found, "an answer to Describe", "networkPolicy.enabled")
    known = [(peer, peer.compatibility) for peer in facts.peers if peer.compatibility is not None]
    ours = _expected(facts)
    reported: set[str] = set()
    for peer, theirs in known:
        for name, value in ours.items():
            there = getattr(theirs, name)
            if there != value and name not in reported:
                reported.add(name)
                found, limit = f"{peer.instance} has {name} = {there}", f"{value}, as this file says"
                yield error(f"pair-{name.replace('_', '-')}", found, limit, settings[name])
    for name in (field.name for field in fields(Compatibility)):
        values = {getattr(theirs, name): peer.instance for peer, theirs in known}
        if len(values) > 1 and name not in reported:
            found = ", ".join(f"{instance}: {value}" for value, instance in values.items())
            yield error(f"pair-{name.replace('_', '-')}", f"{name} differs: {found}", "one value", settings[name])


def _expected(facts: Facts) -> dict[str, object]:
    config = facts.config
    expected: dict[str, object] = {
        "hash_contract": HASH_CONTRACT,
        "kv_dtype": config.model.dtype,
        "block_tokens": config.block_tokens,
        "draft_tokens": config.draft_tokens,
    }
    if facts.model.fingerprint:
        expected["model_fingerprint"] = facts.model.fingerprint
    return expected
