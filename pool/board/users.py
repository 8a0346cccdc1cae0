"""Users of the board and their roles, and single sign-on: the user whom a trusted proxy names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from starlette.types import Scope

from pool.board.proxies import Proxies
from pool.errors import PoolError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,127}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


class Role(StrEnum):
    """What a user may do: viewers look, operators act as well."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Way(StrEnum):
    """How a user signed in; the journal has it behind the name."""

    PASSWORD = "board"  # noqa: S105 - a word in the journal
    SINGLE_SIGN_ON = "board, single sign-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Someone who has signed in. `session` is what the tokens in forms are bound to."""

    name: str
    role: Role
    way: Way
    session: str = field(repr=False)

    @property
    def can_act(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def can_sign_out(self) -> bool:
        """A proxy's session is ended at the proxy."""
        return self.way is Way.PASSWORD


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """Single sign-on; off without a user header. Every user whom the proxy names may look; those in `operators`, or in a group of `operator_groups`, act."""

    user_header: str = ""
    groups_header: str = ""
    operators: frozenset[str] = frozenset()
    operator_groups: frozenset[str] = frozenset()

    @property
    def is_on(self) -> bool:
        return bool(self.user_header)

    def must_fit(self, proxies: Proxies) -> None:
        """Refuse settings that contradict each other."""
        for name in (self.user_header, self.groups_header):
            if name and not _HEADER.fullmatch(name):
                raise PoolError(f"{name!r} is not a header's name: 1 to 64 letters, digits and dashes")
        if self.is_on and not proxies.networks:
            raise PoolError(
                f"single sign-on by {self.user_header} needs a trusted proxy: without one anybody could send that header"
            )
        if not self.is_on and (self.groups_header or self.operators or self.operator_groups):
            raise PoolError("operators of single sign-on are given, but no user header: set it as well")
        if self.operator_groups and not self.groups_header:
            raise PoolError("operator groups are given, but no groups header: set it as well")

    def user(self, proxies: Proxies, scope: Scope) -> User | None:
        """The user whom a trusted proxy names, if it names one."""
        if not self.is_on:
            return None
        name = proxies.header(scope, self.user_header)
        if not NAME.fullmatch(name):
            return None
        groups = proxies.header(scope, self.groups_header) if self.groups_header else ""
        acts = name in self.operators or not self.operator_groups.isdisjoint(
            group.strip() for group in groups.split(",")
        )
        role = Role.OPERATOR if acts else Role.VIEWER
        return User(name=name, role=role, way=Way.SINGLE_SIGN_ON, session=f"single-sign-on:{name}")
