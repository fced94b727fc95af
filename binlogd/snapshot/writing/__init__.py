"""Winners decoded, carried into the columns of now, and written as files."""
