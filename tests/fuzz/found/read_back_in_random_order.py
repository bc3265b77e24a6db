"""gfx942 emulated at random: wrong numbers

95 of 512 elements of o26; o26[16, 0] is 9.0, not 0.0

Run it with
    python THIS_FILE
"""

import base64
import zlib

import ml_dtypes  # it names dtypes for numpy
import numpy as np
import tilewave
from tilewave import *
from tilewave.mapping import *

M = sym.M
N = sym.N
K = sym.K
P11 = sym.P11
L = sym.L
S18 = sym.S18
SPACE = sym.SPACE
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(M, 16, 1),
        WorkgroupConstraint(N, 32, 2),
        TilingConstraint(K, 64),
        TilingConstraint(L, 64),
        WaveConstraint(M, 16),
        WaveConstraint(N, 16),
    ]
)
def kernel(
    a3: Memory[M, K, GLOBAL_ADDRESS_SPACE, f8e5m2fnuz],
    a7: Memory[K, N, SHARED_ADDRESS_SPACE, f8e5m2fnuz],
    s12: Memory[P11, M, GLOBAL_ADDRESS_SPACE, f8e5m2fnuz],
    a20: Memory[N, L, SPACE, f8e5m2fnuz],
    o26: Memory[N, M, SPACE, f32],
):
    x1 = Register[M, N, f32](0.0)
    
    @iterate(K, init_args=[x1])
    def loop10(p2):
        x4 = read(a3)
        x5 = x4 - 0.5
        x8 = read(a7)
        x6 = mma(x5, x8, p2)
        return x6
    
    r9 = loop10
    
    x13 = cast(r9, f8e5m2fnuz)
    write(x13, s12, mapping=IndexMapping(2, inputs={M: i, N: j}, outputs={P11: j, M: i}))
    x14 = Register[M, N, f32](0.0)
    
    @iterate(L, init_args=[x14])
    def loop23(p15):
        x16 = read(s12, mapping=IndexMapping(2, inputs={P11: j, M: i}, outputs={M: i, L: j}))
        return r9
    
    r22 = loop23
    
    write(r22, o26)
    write(x1, o26)


def laid_out(x, order, steps, before, after):
    """Return x's numbers in memory with this layout."""
    spans = [abs(s) * (n - 1) + 1 + b + a for n, s, b, a in zip(x.shape, steps, before, after)]
    memory = np.zeros([spans[n] for n in order], x.dtype).transpose(np.argsort(order))
    for axis, (n, s, b) in enumerate(zip(x.shape, steps, before)):
        last = b + abs(s) * (n - 1)
        part = slice(b, last + 1, s) if s > 0 else slice(last, b - 1 if b else None, s)
        memory = memory[(slice(None),) * axis + (part,)]
    memory[...] = x
    return memory


def from_text(text, dtype, shape):
    """An array from its compressed bytes."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)


def check():
    a3 = from_text("eNqVmUGOKzEIRFmy5Ebh5uFIc4Qv/Zm2lLIfOL1pdRK7bQxFVcXs/1W/t/i7P88/L/u4ft5/v8vfu//dLT/H67jnesY937uMW/PJPM97n+e1Tvt81nnWc32+/5l/rVv287zPJR4B+3UY//xO16nf6zjdn65zja/zOejnOu+Kf8F75Zws+/vav46XdWp+6d0hXibxWHmQ5/zSc9f46fwu8+t50nuM8iXPeUP5r/kesG79fp1PwTnU+RxXPb3PdUH55XW+a9zxDvXnA25s+3738dX5CK8UV7Te9Jy0bjQv6Zw1P7Z5DOo1+3G4LsCDqW69+rrbcOx13q8N8UGcep1/79XvT8/RoR+sq874vJ0r1QXsV89b81PPdcNXyOfIHicJF7z6vLbq46i4p7hB50TriOpxyHLgGdCfYngv5dWqyzz33S2v8g5/rPp46HxbfOxcRxp36rsbXgDPmfoj4ZfmE/bl6vMKcRR4geK/w3NA//YBDzZ+l8BfYF7NG5pf85bwl9aj4zS+xD+d4pB9vSo/dOAflLcOOOsDzyS+Tefll/1g64vQD7TODfDIqe4H3qhxn/rHpm+ILxMPfJ/jGUMexcSDrdcTY71Z3w8C8Bmv7HUO4bDmYVBdEH5CXlM9bteAh9RfjHDKepxUPI7s+Tzp70mPOfFi0EEGvJj4Q4DuduJlBu+1O5wh3RSDvkJ9D3qHcCrqkh+9Bz1ooLvzTtds+fU69zPCHeLDQfEc9A/p6AkHKV4x7Iv6IOpEyA/UC8DfUOcOdR95l/8TvyT+FUOeUj+OgfeTH7HpDogv+XIx6aO807cbnkG+EU/06nVoVK9f9Fyn/em8XoOeyL5/xeBHEP4RH/P8rr687nxgwmWKk1fP84L8tVcfv6nuid9jXxz6rGfPXyf/wrL34ynvyafXPjz5XeQ32eAn4ntr8B2r95XJf426w80Y/F4f/ImtXvNSB1fvZzjoLJ3Xb3HtS//RbnENdCHxMb/UT1v8X+d8IdxBf4hwBOJBfRP/ByPfF/g25aPnHS5u+6kev9E/GfykyIHnVu8rEV+1uvN9J1/cq8cj4mU21HHkd3odfcTJ56hB5w/9Bv2HGvQP+f2gaze/dPDPyV8l32H6nw11FeAQ+QKEvz7obof12hAH5Glr3n/TsbIp", "float64", (16, 64)).astype(np.dtype("float8_e5m2fnuz"))
    a7 = from_text("eNqVm01yKzEIhFlqyY2Gmw9HyhFS72dcZdBHa7KZSmLLEkJNdwub/fn5uf4+zPPf0/4/n78/z5Xfr/u5v/++4vvv9cfje/znfRbfr3vGeZ5eP/faf94q4z6fVz/XYR3P0wPWU+NSPrfGceV+vc/rrPz/s/7cz3fV+JXfLfbj1d/b/tR9v0s+xH79n/jAeurr6rPu+yfup+uFdX2eV1ln7PfZY5+v9f31fRSnln/l/zUudd2fvKK42T6f6n7QvOr6aj4syqcyXzqHbVyYVz1XLQ7XPp71nFecoDxr8YRzapBnnns8qfle8/qz7tjHl84R4VYdj/CD8A/fD/Gs+9jwJfa41+Yf+/ND+OHifRW/FtWXnPFO1R/Klzb/gHNvcE5usY8BeWdQb2JfxxfgOp2zOg+qk5UPGOCew77SPlVcqPNAfL6gzhrUJRHvBfXeIZ8a/l1zXVsQ17ZuyMM6Ps2vzod4UD3PK+f11Di2uq7yOub5Ef+r8Wj1CeJn6lxCPOu+UrxbPSc+A+e34sjKud5T/cX1Qz55znlHdcMFXzHBd2s87O08AS+o/i3BT1v8cl9vKH8IP1p9t/3nU9wbf7z3+0D8T/HHxlfuedwaB6oPlTcQTjSdETM+kw6r5wfrMvCIum7Uc7B+qtftHN1Cb6SoYxCnFncTdcD2n9d0NOwz4aorng263YQOIrxcMetmA17YeBXozVb/Y7+O03xzqgf3GR9r/48zHeigh0zwy4ZTcF7bebzFPGzWC3QeqD4QHjd9C/vtOeN0y9ecdeTp/i7Bv4jHUN2tcWvxz7lO1X0iP8Fj5rnE+1Hf57t60dZ5n/kqHrNOafthM45gnr/1W3LmQxWviQc7xU3hMtQ1i9kfRF4OPh/5YytnvurCN2nnHfwW0vuEM5QP5GeRXrDT86n0kb2rE5azH4c+jsAvelqe1W3Su8QXGs+OmYc1PMjZ3/EQOhXuBwhPCKdpfOVTNr56zXyAfFPyX5v+BD6k9L+6b6G4oh4Afe+wvuZbCZ+a8mmd+o+khy6hu2zOf9R5lOd55s+awGeD+nVcF4iP5ezb0nrxfvKe8w55qtDPJvxrg/P6Fl/tUE9W/KX10D0o+tY3xAn8XOJPxGfxHkH4sHguBN/BfIE8JJ+e6uqKWRcTftP8aR3H54ZwJGcfgfbdc/ZBTNQ98uVrfpOuRp/jUI/jfR7FTexr4zf3nt+e3jMq/7r5HfeZb4w4YTOOOfBRF3USfdsU/BdwVfl7df+QT14zrjvkO9U98oXIfyD/mPyz9dJHwXu8mPfNCJ9EPSVcMOHTKF+Y6nDjVTHjFp170r/kCznoY+LXlKeL9LrN/hedV9JHhEfqHkL5en7IUxGfYBxTPivULeJN5LdgHxPp2FvkDeAT3bMpnwD5Wsy4SecU+bid6ac2T/LPhB9B+bvAf1H35A0fbdbxqp+OxlP3C0v4zlTflqg/qC8BZwmfCF+oDpPvRfyV+ALe7wu/zxRvSrFf0A9GPA5xH+4x8dzYjGsWs2/lwoeleKAPdc1+FNZN4btgH63SBTnnBdVNurcyNT7ox1NcQ18t5/wlnwX7IsiXFrqE7r2It6CvZy/z0OZ1En/Gfhyb/RHPWZejf3HN+Kv8xCX4iAMuSf4j5kvxJD5DvLrh1ks/xlQdjzNeqngn8qaYdR3qR1HPCcep71bhKPEr7Mu9z/JQ+fl0r6X6sal/luoe8WSF1yb4wqm/T/lP45EP0vrGyN+LMx+b8oTu76j+U7+I6h9G//qQ3zWdDLyYdFebTwj/Oue8xftPm3kz4RP5EHRPQ32Y5KfT93fonq/1/aTwkwx4vDpnOfMIF/4Q6vM482dM+CMm/Lul+N7h90fIB0HfJWbfkX7HfkabcV/dJ9O+ex76UznXt+O+5JjrHt4r5uxLWsz8XH7fSvgeWC9s1iGkX13of+ynBf+98kvKd+qHQB4mfJwF9WpBfVT9z8qPIV7d8D9nv6v5csADSdcr3Sf7aXKul/L+GXRj04Uh/HW4/3rbHyj1aQi8DsEvoX4pPKd7Zepzxn5H2G+lg7EfJuZx6F6R7olU36vHvN/k76rvRZPPakL3qz5lf8mbVf9O+/5bHs7vpV5ZIr/IL6c+Wfl9S6q/UCewXxLwl87HOvTzOk/4BYy/YII=", "float64", (64, 32)).astype(np.dtype("float8_e5m2fnuz"))
    s12 = laid_out(from_text("eNrtxbENAAAIA6D+f7GbjW8YWEjObGzbtm3b9tsLDRjuLg==", "float64", (32, 16)).astype(np.dtype("float8_e5m2fnuz")), (0, 1), (1, -1), (3, 3), (0, 0))
    a20 = laid_out(from_text("eNqdmUtyxDAIRFmy5Ebm5taRcoRUKuOpGtCjlXjj8owtxK9pkNnPFct+r9c90j6v1+9e/n/uX/frvdz//173Wef57vp8bu/Bc5XzXG0/Ra/n90delPUs4f21l1P1q/ap8qW863Mdr3LEvkPsk9Z95JKdPPd2aP6z/f7qOu+r7Lvq/zy/7/fe3s9Vv2vvgX2qH8juTX6KuAQ/0b7rfule863lU7UD6VH88PbrPduF1ql2i5IPnrP9Kc+r/CYX/Fr3e/p+rL2/Kd+r/s93FY9aXObej4i/OfuV7OuU1yVOImd8Jjx0ygfIu/Zss/71ue6H4tBAj4C8InkB+eQQZwHrVpxv+lyQF4DjBjhZ/V3ruxFe21wPKO8c8C5EfFZ5uE+xj2aHex9PVFconlzVdbBXKJwiu9keL6p9AvxIcUV1LYB/hOAxZDeqHwG4WP0SUD+wngFOW57ZoeGyzf6heoL4DThE9dWo/tiM1zXPJV9egnfd+zxq+LSARwp7kL9VPfYl4m3t7SfrEuBS/d+pj6H+Zwn+SnX2mvO1+ivWId8Avan+N1xRekG8E++l/PY113HiKbJ/oj7B5jpmEHfUH1d+rHjoaXz6OusDW34BftY8J37X8Oaa47bhNKwToC/18RTnTn1kzvYM8V0sobfwtwv9nOqUgT2hbyK7E15j3NrMY1ve3Wd9qeKjjefQXOea+VXzy2Hdbvi9RP8EeEV8puGR4DukN80dMK+vmafSegE4E9DvUh6ovszX3G9ZnvG/Vk9ynnuczg9oDujgl8pH/t23Gsx/yE9rjp+a7zjvXXN+Nr0hTp34n+Cl1B8a8FzCXeoDKS9pnkm4SbgdYo5G/Jj4J82xGs6JOVHjaVCPad5O+BuAp8rPDT8Az5HP5uGcGL7HOi3mksRbcW5yAX857B8IZ4iPKT5ccYX6zFjzXAZ5fc7zC+Jjijep/qn14YK3ndqn8WNxHkHnVvFHfVSdpPnL6XlPwy2oH5SPxB+xLuY8T6L+uuHhmus+nUsqfx+f3+XZ/MXV/EL0xXQORLgROccV4jzUK8rnWP+zZ+tn7nku6KJfxzlwzv1KHPb9IeZgar5F/RidpxLeEo+keTbxVp4XfQO2SaNk", "float64", (32, 32)).astype(np.dtype("float8_e5m2fnuz")), (1, 0), (1, -1), (3, 3), (1, 1))
    o26 = from_text("eNrtxbENAAAIA6B+7tuOjW8YWEjOTmzbtm3b9tsLlTbuHw==", "float64", (32, 16)).astype(np.dtype("float32"))
    compiled = wave_compile(WaveCompileOptions(subs={M: 16, N: 32, K: 64, P11: 32, L: 32, SPACE: SHARED_ADDRESS_SPACE}, dynamic_symbols=[S18], target='gfx942'), kernel)
    compiled.emulate(a3, a7, s12, a20, o26, S18=4, order="random", seed=5)
    np.testing.assert_array_equal(s12.astype(np.float64), from_text("eNqFl6uW3DAMhgMWFBQEDAgoCAgICDAICMg5KxBgYBBgYBAwYN5z/Ch9hIUD92xrAX+1uiE6SnyRfv26pOu+nlP+iG4pUvUI3RXp9X3+K48iJdfrVU9FXlLrKvciXa7vFZyr96zl+1r0EedtquOcG85Pue3vHfcF9RvrN6nXDUXOwGmX9nkXzhHo+qzY/0BcBuwP8DvC/gPnrZALcPe4T/crzleu+dCV71PRX+91PBLOibBnhK7xmHPth/qr9++I6wF+COMJv/S98vBh4OWBa8yQ4GeEHeSR3vfxXtul+Dmct8Lew4iTx3qN1x12T9h3Ap+F9uP+C7w/Yf+FPFc7AuLhYNeK9RN4swO/DXHvwcsNdYv1qoddl8F39eP1rNepvwPw86grb/n/+RfgTydtfkX4NyBeGne1t5f6/Yx8m4067w28goF7Qj3XON2ljavje8TP5XY+zdAv8FGQvyfyb8d34hlw/mrwboA9gnXsJx68t+pLgj30IyC+C/rBgX6yAU+N7wj8E/gQmPfQmZfsuyN4RFwFPBogT8R/h198/yZ1ftL/iP2OuBt9QYz8O6S9f0deJqNejbjvn7h/g5vm9a9czw0e93rg6I0+9RPS5ba/AXUwoM7y/NGYd9jHe+TDifiR11o/HtKu9z3z24ov9Bm69ufF6AesJ6pP4I0Drla9GlAH7rk9f0djztyMeZ1zwwreTegPq7R5JwZPxcDLwjcZdTAgzqfRj9h3lGcfz/Z/DPsgcYrG/O7Rx5gHO+dZqfu9dX5Ev+MczPo0fJNHDnFMwDWBvx5z/8b/NtQVnecP7FvAuxvzGv452KX58gPz5kZ8wTsv7Xng97PmH/Mtgq/eiOuIfFU/brA/GvP9hDrF/5EdebYgH6Nh3w24nMZcEY16IPIJkp2IFg==", "float64", (32, 16)))
    np.testing.assert_array_equal(o26.astype(np.float64), from_text("eNrtwQENAAAAwqD3T20PBxQAAADwbhAAAAE=", "float64", (32, 16)))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='M', size=16, tile=16, axis=1, wave=16), Dim(name='N', size=32, tile=32, axis=2, wave=16), Dim(name='K', size=64, tile=64, axis=None, wave=0), Dim(name='P11', size=32, tile=0, axis=None, wave=0), Dim(name='L', size=32, tile=64, axis=None, wave=0)), arrays=(Array(name='a3', dims=('M', 'K'), dtype='f8e5m2fnuz', content='small', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='a7', dims=('K', 'N'), dtype='f8e5m2fnuz', content='small', space='SHARED_ADDRESS_SPACE', layout=None), Array(name='s12', dims=('P11', 'M'), dtype='f8e5m2fnuz', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=Layout(order=(0, 1), steps=(1, -1), before=(3, 3), after=(0, 0))), Array(name='a20', dims=('N', 'L'), dtype='f8e5m2fnuz', content='small', space='SPACE', layout=Layout(order=(1, 0), steps=(1, -1), before=(3, 3), after=(1, 1))), Array(name='o26', dims=('N', 'M'), dtype='f32', content='poison', space='SPACE', layout=None)), body=(Fill(name='x1', dims=('M', 'N'), dtype='f32', value=0.0), Loop(name='loop10', dim='K', init=('x1',), params=('p2',), body=(Read(name='x4', array='a3', mapping=None, per_thread=0), Compute(name='x5', op='-', args=('x4', 0.5)), Read(name='x8', array='a7', mapping=None, per_thread=0), Mma(name='x6', a='x5', b='x8', acc='p2')), returns=('x6',), results=('r9',), start=0, stop=0, step=0), Cast(name='x13', x='r9', dtype='f8e5m2fnuz'), Write(x='x13', array='s12', mapping=Mapping(tile=('M', 'N'), places=(('M', Place(along='M', sign=1, offset=0, symbols=(), modulo=0)), ('P11', Place(along='N', sign=1, offset=0, symbols=(), modulo=0)))), per_thread=0), Fill(name='x14', dims=('M', 'N'), dtype='f32', value=0.0), Loop(name='loop23', dim='L', init=('x14',), params=('p15',), body=(Read(name='x16', array='s12', mapping=Mapping(tile=('M', 'L'), places=(('M', Place(along='M', sign=1, offset=0, symbols=(), modulo=0)), ('P11', Place(along='L', sign=1, offset=0, symbols=(), modulo=0)))), per_thread=0),), returns=('r9',), results=('r22',), start=0, stop=0, step=0), Write(x='r22', array='o26', mapping=None, per_thread=0), Write(x='x1', array='o26', mapping=None, per_thread=0)), seed=5, workgroups=0, dealt=False, mapping='', opens=(('S18', 4),), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False)"
