"""Trusted proxies. Only their headers are used for the caller's address, TLS and host name; headers
from other addresses are ignored."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from starlette.datastructures import Headers
from starlette.types import Scope

from pool.core.errors import PoolError

_MOST_HOPS = 20

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxies:
    """Networks of trusted proxies; none by default."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Parse addresses and networks; raises `PoolError` if one is invalid or would trust every address."""
        return cls(networks=tuple(_network(text) for text in texts))

    def relayed(self, scope: Scope) -> bool:
        """Return whether this request came from a trusted proxy."""
        peer = _address(_peer(scope))
        return peer is not None and self._trusts(peer)

    def address(self, scope: Scope) -> str:
        """Return the caller's address: the peer's, or the last one in X-Forwarded-For that is no trusted
        proxy."""
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
        """Return whether the caller uses TLS, to the board or to the trusted proxy."""
        relayed = self._list(scope, "x-forwarded-proto") if self.relayed(scope) else []
        return (relayed[-1].lower() if relayed else scope["scheme"]) == "https"

    def hosts(self, scope: Scope) -> frozenset[str]:
        """Return the host names under which the caller may have reached this board."""
        own = Headers(scope=scope).get("host", "")
        return frozenset({own, self.header(scope, "x-forwarded-host")} - {""})

    def header(self, scope: Scope, name: str) -> str:
        """Return a trusted proxy's header; empty if it is missing, or occurs twice: the caller may have sent
        one of them."""
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
    """Parse an address with or without a port, as proxies write it; None if it is invalid."""
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
            f"invalid trusted proxy {text!r}: give an address or a network, like 10.0.0.7 or 10.0.0.0/24"
        ) from exc
    if network.prefixlen == 0:
        raise PoolError(
            f"trusted proxy {text} contains every address, so any client could claim to be any user: "
            "give only the address or network of the proxy"
        )
    return network
