"""Random kernels and damaged inputs, from seeds: a share in every test run, hours of it by `make fuzz`."""
