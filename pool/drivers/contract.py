"""The contract with the program of a pod: its environment and what it must answer. The reference
worker follows it; any other program may too. docs/worker-image.md describes it for their authors.

    WARMPOOL_WORKER       the worker's id, which is also the name of the pod
    WARMPOOL_UID          the uid of this pod
    WARMPOOL_PROFILE      the profile of the worker
    WARMPOOL_HOST         the address to listen on
    WARMPOOL_PORT         the port to listen on; 0 means any free port
    PORT                  the same port; with the local driver, a port that was free at the start
    WARMPOOL_KEY_FILE     a file with the worker's key in hex; not set if the pod has no key
    WARMPOOL_STATUS_FILE  where to write the status; optional if a probe reports readiness
    WARMPOOL_GRACE_S      how long open sessions may continue after SIGTERM, in seconds

The status is `{"uid": WARMPOOL_UID, "port": 12345, "ready": true}`. A pod is ready once its process
has written it, or once its readiness path answers on PORT; a status with another uid is ignored. On SIGTERM the program accepts no new session,
waits for the open ones, and exits. As process 1 of a container it needs a handler for SIGTERM from
its first moment, or an init in front of it: the kernel drops the signal otherwise. `GET /sessions`
answers `{"open": 0}`, or the number of open sessions. This is the worker's self-report.

A pod inherits only the variables in `INHERITED`. The environment of its creator may contain the
secrets of the pool.
"""

from __future__ import annotations

PORT_HINT = "PORT"

INHERITED = frozenset(
    {
        "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH",
        "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
    }
)  # fmt: skip
