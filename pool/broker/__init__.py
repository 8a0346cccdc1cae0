"""Redis: locks, queue lengths, ACL lines, and which of its refusals are an outage."""
