"""`warmpool.testing` in a checkout: the names of `pool.client.testing`."""

from pool.client.testing import *  # noqa: F403
