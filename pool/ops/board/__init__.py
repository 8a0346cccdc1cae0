"""The board: a web page that shows the fleet live. It reads the same reports as the CLI, once for
all browsers. Actions need a sign-in."""
