"""The same fit on threads, processes, Ray and streams."""
