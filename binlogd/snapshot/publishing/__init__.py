"""From finished files to a published snapshot: marks, manifest, rename, stores and lakes."""
