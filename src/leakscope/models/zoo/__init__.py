"""Our own research models: one family per file, each registered by name (``leakscope:NAME``)."""
