"""`python -m pipeline` is the program `embedmill`."""

from pipeline.cli import main

main()
