"""The lane: how calls of the task contract arrive, are decided and are answered."""
