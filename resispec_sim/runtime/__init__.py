"""Live models: the only part of the package that needs torch, and only once a function is called."""
