"""`python -m pipeline` is the program `embedmill`."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
