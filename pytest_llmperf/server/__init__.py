"""The life of a server process: config, launch, readiness, leases, stop."""
