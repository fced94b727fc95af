"""The words of the command line, one module each: options in, one call, text out."""
