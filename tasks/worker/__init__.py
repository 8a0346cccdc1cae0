"""A worker process: how it starts, consumes, reports that it is alive, and stops."""
