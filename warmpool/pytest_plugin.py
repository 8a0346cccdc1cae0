"""The pytest plugin in a checkout: that of `pool.client`."""

from pool.client.pytest_plugin import *  # noqa: F403
