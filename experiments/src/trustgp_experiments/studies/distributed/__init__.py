"""The same fit on threads, Ray and streams."""
