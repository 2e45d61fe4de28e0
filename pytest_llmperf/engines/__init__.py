"""Engine adapters: one file each."""
