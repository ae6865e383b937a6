"""`python -m tidemill.cli`: the same as `tidemill`, if the console script is not on the PATH."""

from tidemill.cli import main

main()
