"""warmpool: keeps workers warm and hands one to any service in milliseconds. ARCHITECTURE.md is the map."""
