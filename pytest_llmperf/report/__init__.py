"""Reports: everything a person or a machine reads after a run, made from ``records`` alone."""
