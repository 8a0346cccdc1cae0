"""What makes pods. `port` says what a driver promises; `local` and `kubernetes` keep it."""
