"""What is looked at beside a measurement: guards and their evidence."""
