"""`python -m spillway`."""

from spillway.cli.app import main

if __name__ == "__main__":
    main()
