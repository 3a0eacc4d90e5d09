"""Entry point of `python -m lgym.cli`."""

from lgym.cli import main

if __name__ == "__main__":
    main()
