"""Logs that are still being written, followed on file systems that lie: `source.TailSource` over `follower.Follower` over `reading.step`."""
