"""Wrong passwords, counted by address. Each one makes its own address wait longer and no other; sessions are not asked.

Memory is bounded: of more addresses than are kept, the one that failed longest ago is forgotten first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass

from pool.clock import Clock

FREE = 5
LONGEST_WAIT_S = 300.0
FORGOTTEN_AFTER_S = 3600.0
MOST_ADDRESSES = 4096
# The part of an IPv6 address that one subscriber can change at will is not counted.
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
    """The first `FREE` wrong passwords of an address cost nothing; each one after them doubles its wait, up to `LONGEST_WAIT_S`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, address: str) -> float:
        """Seconds until a password from this address is compared again; 0: now."""
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
