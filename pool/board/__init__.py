"""The board: one web page that shows the fleet live. It reads what the CLI reads, once for all who look, and acts only for who has signed in."""
