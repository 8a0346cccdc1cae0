"""Types, rules and decisions that all other rooms use. Pure, except for the clock, randomness and threads."""
