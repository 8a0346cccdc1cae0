"""Proxies whose headers are believed: the caller's address, whether it speaks TLS, and the host name it asked for. A header from any other
address is ignored."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers
from starlette.types import Scope

from pool.errors import PoolError

_MOST_HOPS = 20

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """Networks of trusted proxies; none by default."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read addresses and networks. `PoolError` with a sentence if one is neither, or would trust every address."""
        return cls(networks=tuple(_network(text) for text in texts))

    def relayed(self, scope: Scope) -> bool:
        """Whether this request came from a trusted proxy."""
        peer = _address(_peer(scope))
        return peer is not None and self._trusts(peer)

    def address(self, scope: Scope) -> str:
        """The caller's address: the peer's, or the last one in X-Forwarded-For that is no trusted proxy."""
        found = _peer(scope)
        if not self.relayed(scope):
            return found
        for hop in reversed(self._list(scope, "x-forwarded-for")[-_MOST_HOPS:]):
            parsed = _address(hop)
            if parsed is None:
                break
            found = str(parsed)
            if not self._trusts(parsed):
                break
        return found

    def is_tls(self, scope: Scope) -> bool:
        """Whether the caller speaks TLS, with us or with the trusted proxy."""
        relayed = self._list(scope, "x-forwarded-proto") if self.relayed(scope) else []
        return (relayed[-1].lower() if relayed else scope["scheme"]) == "https"

    def hosts(self, scope: Scope) -> frozenset[str]:
        """The names that the caller may know this board by."""
        own = Headers(scope=scope).get("host", "")
        return frozenset({own, self.header(scope, "x-forwarded-host")} - {""})

    def header(self, scope: Scope, name: str) -> str:
        """A trusted proxy's header; empty without one, and if it is there twice: then the caller may have sent one of them."""
        values = Headers(scope=scope).getlist(name) if self.relayed(scope) else []
        return values[0].strip() if len(values) == 1 else ""

    def _list(self, scope: Scope, name: str) -> list[str]:
        values = Headers(scope=scope).getlist(name)
        return [item.strip() for value in values for item in value.split(",") if item.strip()]

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _address(text: str) -> Address | None:
    """An address, as proxies write it: with or without a port."""
    bare = text.rpartition(":")[0] if text.count(":") == 1 or "]:" in text else text
    try:
        parsed = ipaddress.ip_address(bare.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError as exc:
        raise PoolError(
            f"trusted proxy {text!r} is neither an address nor a network; write 10.0.0.7 or 10.0.0.0/24"
        ) from exc
    if network.prefixlen == 0:
        raise PoolError(
            f"trusted proxy {text} is every address, so anybody could name any user; "
            "give the proxy's own address or network"
        )
    return network
