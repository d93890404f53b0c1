"""The project's benchmarks, one module per question; `noria bench` runs them."""
