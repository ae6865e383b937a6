"""`python -m tidemill.cli` is `tidemill`, for where the console script is not on the PATH."""

from tidemill.cli import main

main()
