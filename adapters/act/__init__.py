"""The acting half of recovery: a small process that runs the one call it is told to, and what the loop around it needs."""
