"""Users of the board and their roles, and single sign-on by a header of a trusted proxy."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from starlette.types import Scope

from pool.core.errors import PoolError
from pool.ops.board.proxies import Proxies

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,127}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")


class BoardRole(StrEnum):
    """What a user may do: viewers can only view, operators can also act."""

    VIEWER = "viewer"
    OPERATOR = "operator"


class Way(StrEnum):
    """How a user signed in; recorded in the journal after the name."""

    PASSWORD = "board"  # noqa: S105 - the name in the journal
    SINGLE_SIGN_ON = "board, single sign-on"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A signed-in user. Form tokens are bound to `session`."""

    name: str
    role: BoardRole
    way: Way
    session: str = field(repr=False)

    @property
    def can_act(self) -> bool:
        return self.role is BoardRole.OPERATOR

    @property
    def can_sign_out(self) -> bool:
        """Return whether the board can end the session; a session of the proxy ends at the proxy."""
        return self.way is Way.PASSWORD


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOn:
    """Single sign-on; disabled without a user header. Every user named by the proxy is a viewer;
    those in `operators`, or in a group of `operator_groups`, are operators."""

    user_header: str = ""
    groups_header: str = ""
    operators: frozenset[str] = frozenset()
    operator_groups: frozenset[str] = frozenset()

    @property
    def is_on(self) -> bool:
        return bool(self.user_header)

    def must_fit(self, proxies: Proxies) -> None:
        """Raise `PoolError` if the settings contradict each other."""
        for name in (self.user_header, self.groups_header):
            if name and not _HEADER.fullmatch(name):
                raise PoolError(
                    f"invalid header name {name!r}: use 1 to 64 letters, digits and dashes, like "
                    "X-Forwarded-User"
                )
        if self.is_on and not proxies.networks:
            raise PoolError(
                f"single sign-on with {self.user_header} needs a trusted proxy, because any client "
                "could send this "
                "header: set --trusted-proxy"
            )
        if not self.is_on and (self.groups_header or self.operators or self.operator_groups):
            raise PoolError(
                "single sign-on options are given, but not the user header: set --sso-user-header, "
                "or remove them"
            )
        if self.operator_groups and not self.groups_header:
            raise PoolError(
                "operator groups are given, but not the groups header: set --sso-groups-header, or "
                "remove them"
            )

    def user(self, proxies: Proxies, scope: Scope) -> User | None:
        """Return the user named by a trusted proxy, or None."""
        if not self.is_on:
            return None
        name = proxies.header(scope, self.user_header)
        if not NAME.fullmatch(name):
            return None
        groups = proxies.header(scope, self.groups_header) if self.groups_header else ""
        acts = name in self.operators or not self.operator_groups.isdisjoint(
            group.strip() for group in groups.split(",")
        )
        role = BoardRole.OPERATOR if acts else BoardRole.VIEWER
        return User(name=name, role=role, way=Way.SINGLE_SIGN_ON, session=f"single-sign-on:{name}")
