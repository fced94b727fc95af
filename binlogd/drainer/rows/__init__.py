"""Row bytes to SQL: generated decoders, target tables, lanes and what waits for each of them."""
