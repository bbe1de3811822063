"""One TOML file for a watch: what it may say (`keys`), reading it with the line of every fault (`load`), whom to trust (`trust`)."""
