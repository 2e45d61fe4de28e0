"""Statistics of the gate: pure numpy/scipy, no pytest, no I/O."""
