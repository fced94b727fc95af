"""Values, columns and tables as the files' formats know them."""
