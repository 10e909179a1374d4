"""`python -m tracelens_ext` is the command `tracelens-ext`."""

from tracelens_ext.cli import main

if __name__ == "__main__":
    main()
