"""A pod's deletion, from the mark in its record to the last file. Whoever looks at the pod takes it one step further."""

from __future__ import annotations

import signal

from pool.drivers.local import process
from pool.drivers.local.podfile import Memo, Record, Shelf
from pool.drivers.local.processref import boot_s
from pool.drivers.local.viewing import Viewer


class Ender:
    """Ends the pods of one shelf. All but `is_due` needs the pod's lock."""

    def __init__(self, shelf: Shelf, viewer: Viewer) -> None:
        self._shelf = shelf
        self._viewer = viewer

    def mark(self, record: Record, grace_s: int) -> Record:
        """Decide that the pod ends, at the latest after its grace. An earlier decision may only be shortened."""
        ends_by_s = boot_s() + grace_s
        if record.ends_by_s is not None and record.ends_by_s <= ends_by_s:
            return record
        return self._shelf.write(record.changed(ends_by_s=ends_by_s))

    def is_due(self, record: Record, memo: Memo) -> bool:
        """Whether the pod's deletion waits for somebody to do something."""
        if record.ends_by_s is None:
            return False
        identity = self._viewer.identity(record, memo)
        running = identity is not None and identity.alive()
        return not running or not record.told or boot_s() >= record.ends_by_s

    def carry_on(self, record: Record, memo: Memo) -> Record | None:
        """Take a deletion as far as it goes now: tell the process, kill it when its grace is over, remove what is left of a
        dead one. None if the pod is no more."""
        if record.ends_by_s is None:
            return record
        identity = self._viewer.identity(record, memo)
        if identity is None or not identity.alive():
            if identity is not None:
                process.end_session(identity, record.uid)
            return None if self._shelf.remove(record) else record
        # Once only: to many programs a second SIGTERM means to drop everything.
        if not record.told:
            identity.send(signal.SIGTERM)
            record = self._shelf.write(record.changed(told=True))
        if record.ends_by_s is not None and boot_s() >= record.ends_by_s:
            identity.send(signal.SIGKILL)
        return record
