"""Published optimisation attacks, one per file, each a value over the one engine."""
