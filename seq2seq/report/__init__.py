"""Tables, reports and score output for runs."""
