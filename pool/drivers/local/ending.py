"""The deletion of a pod, from the mark in its record to its last file. It advances whenever the pod
is read or listed.
"""

from __future__ import annotations

import signal

from pool.drivers.local import process
from pool.drivers.local.podfile import Memo, PodDirectory, Record
from pool.drivers.local.processref import boot_s
from pool.drivers.local.viewing import Viewer


class Ender:
    """Deletes the pods of one directory. All methods except `is_due` need the pod's lock."""

    def __init__(self, pod_dir: PodDirectory, viewer: Viewer) -> None:
        self._pod_dir = pod_dir
        self._viewer = viewer

    def mark(self, record: Record, grace_s: int) -> Record:
        """Mark the pod for deletion after `grace_s`. An earlier deadline stays."""
        ends_by_s = boot_s() + grace_s
        if record.ends_by_s is not None and record.ends_by_s <= ends_by_s:
            return record
        return self._pod_dir.write(record.changed(ends_by_s=ends_by_s))

    def is_due(self, record: Record, memo: Memo) -> bool:
        """Return whether the deletion of the pod needs a next step."""
        if record.ends_by_s is None:
            return False
        identity = self._viewer.identity(record, memo)
        running = identity is not None and identity.alive()
        return not running or not record.told or boot_s() >= record.ends_by_s

    def carry_on(self, record: Record, memo: Memo) -> Record | None:
        """Continue a deletion as far as possible now. Return None if the pod does not exist any more.

        Sends SIGTERM to the process, kills it after the grace period, and removes the files of a
        dead one.
        """
        if record.ends_by_s is None:
            return record
        identity = self._viewer.identity(record, memo)
        if identity is None or not identity.alive():
            if identity is not None:
                process.end_session(identity, record.uid)
            return None if self._pod_dir.remove(record) else record
        # Only once: many programs take a second SIGTERM as an order to stop immediately.
        if not record.told:
            identity.send(signal.SIGTERM)
            record = self._pod_dir.write(record.changed(told=True))
        if record.ends_by_s is not None and boot_s() >= record.ends_by_s:
            identity.send(signal.SIGKILL)
        return record
