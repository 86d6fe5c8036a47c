"""Every method on tables of numbers, small and large."""
