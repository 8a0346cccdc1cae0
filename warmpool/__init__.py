"""What services import, in a checkout: the names of `pool.client`.

The distribution `warmpool` has the client itself under this name; `clientdist/` builds it.
"""

from pool.client import *  # noqa: F403
