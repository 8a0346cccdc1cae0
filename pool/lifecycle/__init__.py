"""What happens to claims and workers: one module a verb, and the effects that follow a commit."""
