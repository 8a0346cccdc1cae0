"""`warmpool up`: the whole pool on one machine. `supervision` decides, and `supervisor` carries out."""
