"""`python -m quantplan` is `quantplan`."""

from quantplan.cli import main

main()
