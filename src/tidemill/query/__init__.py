"""SELECT at a time, on Spark."""
