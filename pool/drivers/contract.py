"""What a pod's program is told by its environment, and what it answers. The reference worker keeps this; so may any other.

    WARMPOOL_WORKER       the worker's id, which is also the pod's name
    WARMPOOL_UID          this incarnation of the pod
    WARMPOOL_PROFILE      the profile it was made from
    WARMPOOL_HOST         the address to listen on
    WARMPOOL_PORT         the port to listen on; 0: any free one
    PORT                  locally a port that was free a moment ago, for programs that can not pick one themselves
    WARMPOOL_KEY_FILE     a file with the worker's key in hex; absent when the pod has no key
    WARMPOOL_STATUS_FILE  where to write the status; optional where something else tells readiness
    WARMPOOL_GRACE_S      how long open sessions may go on after SIGTERM

The status is `{"uid": WARMPOOL_UID, "port": 12345, "ready": true}`. A pod is ready once its process has written that; a
status with another uid is nobody's. On SIGTERM the program takes no new session, waits for the open ones, and exits.
`GET /sessions` answers `{"open": 0}`, or how many sessions are open: this is the worker's own word.

Of its creator's environment a pod gets only what `INHERITED` lists: the creator's may hold the pool's own secrets.
"""

from __future__ import annotations

PORT_HINT = "PORT"

INHERITED = frozenset(
    {
        "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "SSL_CERT_FILE",
        "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
    }
)  # fmt: skip
