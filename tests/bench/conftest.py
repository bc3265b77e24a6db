"""`tilewave bench`, called on a GPU that numpy plays."""

from played_gpu import bench_call, gpu  # noqa: F401
