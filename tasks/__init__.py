"""Celery: thin tasks that parse, call and return. The logic is in `pool`."""
