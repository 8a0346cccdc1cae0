"""Celery: thin tasks that parse, call and return. Everything they do is in `pool`."""
