"""Rate limit of wrong passwords, per address. Other addresses and existing sessions are not affected.

Memory is bounded: beyond `MOST_ADDRESSES`, the address with the oldest failure is dropped.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

from pool.core.clock import Clock

FREE = 5
LONGEST_WAIT_S = 300.0
FORGOTTEN_AFTER_S = 3600.0
MOST_ADDRESSES = 4096
# One subscriber can choose the last 64 bits of its IPv6 address, so they are ignored.
_IPV6_PREFIX = 64


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last: float

    @property
    def wait_s(self) -> float:
        if self.count < FREE:
            return 0.0
        return float(min(LONGEST_WAIT_S, 2 ** min(self.count - FREE, 30)))


class Attempts:
    """Wait times by address: none for the first `FREE` wrong passwords, then doubled with each, up to
    `LONGEST_WAIT_S`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, address: str) -> float:
        """Return the seconds until a password from this address is checked again; 0 means now."""
        found = self._of(_subscriber(address))
        return 0.0 if found is None else max(0.0, found.last + found.wait_s - self._clock.monotonic())

    def failed(self, address: str) -> None:
        """Count a wrong password."""
        key = _subscriber(address)
        found = self._of(key)
        self._failures[key] = _Failures(1 if found is None else found.count + 1, self._clock.monotonic())
        self._failures.move_to_end(key)
        while len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the wrong passwords of this address."""
        self._failures.pop(_subscriber(address), None)

    def _of(self, key: str) -> _Failures | None:
        found = self._failures.get(key)
        if found is not None and self._clock.monotonic() - found.last > FORGOTTEN_AFTER_S:
            del self._failures[key]
            return None
        return found


def _subscriber(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(parsed), _IPV6_PREFIX), strict=False))
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)
