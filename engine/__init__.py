"""The engine: bytes in, verdicts out. No I/O, no clock, no threads; see `core.advance` for the one door."""
