"""The parts of the detectors' bench: feeding runs to the engine, asking what it said, scoring the answers, rivals."""
