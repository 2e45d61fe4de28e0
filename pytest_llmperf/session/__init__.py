"""An opted-in session: what it collects, launches, measures and says."""
