"""The explorer: one page on which shape, tile, order and chip are chosen, and everything that follows is seen.

    choice.py    what is asked, checked            kernels.py   the GEMM, or the kernels of a file
    tiles.py     who computes each tile, and when  launch.py    traffic, time, two orders side by side
    code.py      passes and assembly               page.py      the page, alone or served
    server.py    on the loopback address alone

Whatever the page shows is computed by the functions of `tilewave map`, `sim`, `diff` and `compile`.
"""
