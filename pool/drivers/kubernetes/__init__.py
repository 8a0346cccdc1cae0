"""The `kubernetes` driver: the pods of a cluster.

`manifests`, `changes`, `decoding` and `nodes` are pure. `access` is the only module that imports
the official client, and only to read credentials.
"""
