"""Comparisons of configs and builds: gaps, sweeps, A/B, load curves. Knows no pytest."""
