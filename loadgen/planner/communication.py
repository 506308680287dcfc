"""Dispatch and combine: what one all-to-all of a mixture-of-experts layer costs.

    t = fixed + max(peers * per_peer, network) (+ or max) nvlink
    network = (link^p + posting^p)^(1/p)
    link    = network bytes / (share * NIC rate)
    posting = messages per peer * per_message
    nvlink  = NVLink bytes / (share * NVLink rate)

Bytes count one copy of a token for each (token, expert), or one for each node that holds any of its experts, as the
library does. A fraction (ep - domain) / ep of the copies leaves the NVLink domain.
"""

from dataclasses import dataclass
from enum import StrEnum

from loadgen.planner.efficiency import soft_max
from loadgen.planner.hardware import Hardware


class Copies(StrEnum):
    """What a token is sent to."""

    EXPERT = "expert"  # once for each of its experts
    NODE = "node"  # once for each node over the network, forwarded there over NVLink
    RANK = "rank"  # once for each rank; partial sums are reduced before they return


class Direction(StrEnum):
    DISPATCH = "dispatch"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One library's all-to-all, as fitted to its table.

    Attributes:
        fixed_us: (dispatch, combine) time with hardly any tokens inside one NVLink domain.
        network_fixed_us: the same when the network is involved.
        nvlink_share, network_share: of the datasheet link rate.
        forward_share: of NVLink for tokens that came over the network, where it differs (0: it does not).
        per_peer_us: counts are announced to each peer, one after the other (dispatch only).
        per_message_us: serial cost of one message on one connection.
        forwarded: NVLink follows the network instead of running beside it.
        sms: multiprocessors taken while data is in flight.
        nvlink_overlaps: whether work of another microbatch can run beside an exchange over NVLink.
        residual: root mean square of the relative errors on the points left out of the fit.
    """

    name: str
    copies: Copies = Copies.EXPERT
    fixed_us: tuple[float, float] = (20.0, 20.0)
    network_fixed_us: tuple[float, float] = (20.0, 20.0)
    nvlink_share: tuple[float, float] = (0.7, 0.7)
    network_share: tuple[float, float] = (0.9, 0.9)
    forward_share: float = 0.0
    per_peer_us: float = 0.0
    per_message_us: float = 0.0
    forwarded: bool = False
    sms: int = 0
    nvlink_overlaps: bool = False
    residual: float = 0.1


@dataclass(frozen=True, slots=True)
class Traffic:
    """One direction of one layer's exchange, at one rank.

    Attributes:
        tokens: tokens the rank sends.
        top_k: experts of a token.
        ep: ranks that share the experts.
        dispatch_token_bytes, combine_token_bytes: one copy of a token each way.
        node_groups: (top groups, groups) of group-limited routing, which bounds the nodes a token reaches.
    """

    tokens: float
    top_k: int
    ep: int
    dispatch_token_bytes: float
    combine_token_bytes: float
    node_groups: tuple[int, int] = (1, 1)


def token_bytes(hidden: int) -> tuple[float, float]:
    """(dispatch, combine) bytes of one copy: FP8 with a fp32 scale per 128 channels out, bf16 back."""
    return hidden + hidden / 128 * 4, 2 * hidden


def exchange_us(library: Exchange, traffic: Traffic, gpu: Hardware, direction: Direction) -> tuple[float, float]:
    """(whole time, part of it on NVLink) in microseconds of one exchange with nothing beside it."""
    if traffic.ep <= 1:
        return 0.0, 0.0
    way = 0 if direction is Direction.DISPATCH else 1
    each = traffic.dispatch_token_bytes if way == 0 else traffic.combine_token_bytes
    local, remote = copies_per_token(library.copies, traffic, gpu)
    share = library.nvlink_share[way] if remote == 0 else library.forward_share or library.nvlink_share[way]
    nvlink_rate = gpu.nvlink_bytes_per_s.value * share
    nvlink = traffic.tokens * local * each / nvlink_rate * 1e6
    if remote == 0:
        return library.fixed_us[way] + nvlink, library.fixed_us[way] + nvlink
    network_rate = gpu.network_bytes_per_s.value * library.network_share[way]
    link = traffic.tokens * remote * each / network_rate * 1e6
    network = soft_max(link, library.per_message_us * traffic.tokens * traffic.top_k / traffic.ep)
    if way == 0:
        network = max(network, library.per_peer_us * traffic.ep)
    if library.forwarded:
        return library.network_fixed_us[way] + nvlink + network, nvlink
    return library.network_fixed_us[way] + max(nvlink, network), 0.0


def copies_per_token(copies: Copies, traffic: Traffic, gpu: Hardware) -> tuple[float, float]:
    """(over NVLink, over the network) copies of a token that leaves its rank, averaged over even routing."""
    domain = min(gpu.nvlink_domain_gpus, traffic.ep)
    domains = traffic.ep / domain
    if copies is Copies.EXPERT:
        local = traffic.top_k * (domain - 1) / traffic.ep
        return local, traffic.top_k * (traffic.ep - domain) / traffic.ep
    ranks = reached(traffic, traffic.ep)
    if copies is Copies.RANK:
        return ranks * (domain - 1) / traffic.ep, ranks * (traffic.ep - domain) / traffic.ep
    # Every rank that needs the token gets it over NVLink of its own node, the sender's own copy included.
    return ranks, reached(traffic, domains) * (domains - 1) / domains


def reached(traffic: Traffic, places: float) -> float:
    """Mean number of distinct places, of `places` that split the experts evenly, where a token has an expert.

    Group-limited routing draws `top_groups` of the groups first: a place that is whole groups is missed when none of
    its groups is drawn, a place inside a group competes only with the places of the drawn groups. A drawn group is
    taken to hold an expert, which is up to 10 % too many (3.14 for 2.93 of four nodes); tables and predictions alike.
    """
    chosen, groups = traffic.node_groups
    if groups > 1 and places <= groups:
        per_place = round(groups / places)
        miss = 1.0
        for i in range(per_place):
            miss *= max(groups - chosen - i, 0) / (groups - i)
        drawn = places * (1 - miss)
        return float(min(drawn, traffic.top_k))
    open_places = max(places * chosen / groups, 1.0)
    return float(open_places * (1 - (1 - 1 / open_places) ** traffic.top_k))
