"""defib: reads the logs of training jobs and knows what happened to each run."""

__version__ = "0.1.0"
