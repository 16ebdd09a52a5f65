"""One study per file: a function that yields points."""
