"""What is kept in git: fingerprints, the store, updates."""
