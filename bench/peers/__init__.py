"""What the pool is measured beside: limits that nothing can beat, and the way one would write it
with Celery and SQLAlchemy.
"""
