"""Drivers create and delete pods. `port` is the contract; `local` and `kubernetes` implement it."""
