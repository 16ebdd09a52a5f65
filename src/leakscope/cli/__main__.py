"""``python -m leakscope.cli``."""

from leakscope.cli import main

if __name__ == "__main__":
    main()
