"""The `local` driver: each pod is a process on this machine."""
