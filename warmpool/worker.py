"""`warmpool.worker` in a checkout: the names of `pool.client.worker`."""

from pool.client.worker import *  # noqa: F403

if __name__ == "__main__":
    import sys

    from pool.client.worker_command import main

    sys.exit(main(sys.argv[1:]))
