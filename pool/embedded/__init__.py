"""`warmpool up`: the whole pool on one machine. `supervision` decides, `supervisor` carries out."""
