"""MXNet (legacy: retired upstream). `strategies` imports MXNet; `config` and `numpy_compat` do not."""
