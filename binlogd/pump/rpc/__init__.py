"""The gRPC face of the Pump: calls as bytes, in batches, on streams."""
