"""The `local` driver: each pod is a process on this machine. `contract` is what a worker's program is told."""
