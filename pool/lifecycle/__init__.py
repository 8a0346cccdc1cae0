"""What happens to claims and workers: one module per action, and the effects that follow a commit."""
