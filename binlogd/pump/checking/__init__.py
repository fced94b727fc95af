"""A data directory that nobody is using: checked, mended, or made from that of Go Pumps."""
