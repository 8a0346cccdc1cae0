"""Peers for comparison: lower bounds, and a simple version with Celery and SQLAlchemy."""
