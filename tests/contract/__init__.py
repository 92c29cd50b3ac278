"""One suite of behaviour over all engines: a new engine joins with one line in `kit`."""
