"""sm_90a lanes: wrong numbers

8 of 24 elements of o23; o23[0, 16] is 19728, not -3356

Run it with
    python THIS_FILE
"""

import base64
import importlib.util
import zlib
from functools import partial

import ml_dtypes  # it names dtypes for numpy
import numpy as np
import tilewave
from tilewave import *
from tilewave.mapping import *

M = sym.M
N = sym.N
K = sym.K
L = sym.L
SPACE = sym.SPACE
i, j, k, l = (IndexMapping.iterator(n) for n in range(4))


@wave(
    [
        WorkgroupConstraint(M, 64, 1),
        WorkgroupConstraint(N, 64, 2),
        TilingConstraint(K, 64),
        TilingConstraint(L, 32),
    ]
)
def kernel(
    a5: Memory[K, M, GLOBAL_ADDRESS_SPACE, f8e5m2fnuz],
    a8: Memory[L, K, GLOBAL_ADDRESS_SPACE, i8],
    a15: Memory[L, N, SPACE, i8],
    o23: Memory[M, N, GLOBAL_ADDRESS_SPACE, i64],
):
    x1 = Register[M, N, i32](0)
    
    @iterate(L, init_args=[x1])
    def loop19(p2):
        x4 = Register[M, L, i32](0)
        
        @iterate(K, init_args=[x4])
        def loop12(p3):
            x6 = read(a5)
            x7 = cast(x6, i8)
            x9 = read(a8)
            x10 = mma(x7, x9, p3)
            return x10
        
        r11 = loop12
        
        x13 = cast(r11, i8)
        x16 = read(a15)
        x14 = mma(x13, x16, p2)
        return x14
    
    r18 = loop19
    
    x22 = cast(r18, i64)
    write(x22, o23)


def laid_out(x, order, steps, before, after):
    """The same numbers in memory that lies as asked."""
    spans = [abs(s) * (max(n, 1) - 1) + 1 + b + a for n, s, b, a in zip(x.shape, steps, before, after)]
    memory = np.zeros([spans[n] for n in order], x.dtype).transpose(np.argsort(order))
    for axis, (n, s, b) in enumerate(zip(x.shape, steps, before)):
        last = b + abs(s) * (n - 1)
        part = slice(b, last + 1, s) if s > 0 else slice(last, b - 1 if b else None, s)
        part = part if n else slice(0)
        memory = memory[(slice(None),) * axis + (part,)]
    memory[...] = x
    return memory


def from_text(text, dtype, shape):
    """An array from its compressed bytes."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)


def check():
    compiled = wave_compile(WaveCompileOptions(subs={M: 1, N: 24, K: 128, L: 64, SPACE: SHARED_ADDRESS_SPACE}, target='sm_90a'), kernel)
    a5 = from_text("eNqFkkEORCEIQ12y5EbDzeVI/wiTjF8SHpBx06hYWupav+UHnn1Q3n0syygvPp+Dan3dvS/vdqa/e/JEnQMtv796L3/weNZBVIffoY9Yfx76oIe+o+/GnC33V+SgyIH1xT91T7nCl3qfJ3UL6jjff7ycVzlfQ85DjrxnTpzr5H/Sp8g5+q6+X/GBex1yFuvry38a8p746FdLPl+111xW", "float64", (128, 1)).astype(np.dtype("float8_e5m2fnuz"))
    a8 = laid_out(from_text("eNodWWdgVUXTnt0FRqSHqnQFQWqkKKI0MQiEGgGBlxYgItKlF3d2QQUREEPovUkRQq+hSK8C0nuTpmCkd3a+uR//uDk3Z8/MU0/MBzyAfTCkEAEDtwEd61lh9wVKt9c/gvvc3gDvB9g1lvYfA1JupzNZPACtNDSL/rA1SFsw6sRo56C70Ro41owZorNVYXUw15deW9Pe/fOY0O+E+1D8qKvS4S9re9jQuhe7GzvhOqvKXgWwwC++SWcAMowh0Bj/zKX9c8XPpiOYoEjL179gpQExPWgYrSB49xGRBX3a6UUAyhXHLapTIpYI3sNJBA9ki8Jqq3TfSd6oZS1Yu6M1CNW7dtB0rayF7QR/L9v5k6paduCnBTYH6N4cdIJpYQPz6b7oZlnrbLIKjVAHC+4D6GLs9vUHwlVvwGZ+PDeUspwa+HUf1QHnFLwXyIDRee8PVjzYGv+r8xdgAiiNTkMwQ5COvO6taamILh/yFxj0bHvQnv3UWKu1zgKPrQ4VwtVbveBsuVD3bwbHK4nayh7Gk01EGJrhO1BP36wCYc3rLhk0bY07wihjKzx6pzyr8bT7dCUw8NngasF/vkzmcsM80vCHs2TCmlAb4hwQ7P0COFg8C6j3LLe7ofMAA4VaWYNBlzYPnXqzlnWkVo1a0TgBGmplvkmLQQ5GnDSYnDwVTNVk1HkZt9HMyqp3jSsUbCUBDmjLDJD86qMj2+RA1bXtqsErS9CpoobvKhtbPNiYZjyQtNkgR+n6ffaUiZp/bPeurmajmdoeHaBenvKrHatNPUwlV+8Q2AWWftVNVS1DlFehIMvNV/nIa7C4TqkW+2s1aW6/EEh08Z5JOwVwRJs74yd0W/lbQyrqfH34K5v3Nr3NhKQfORcwgKNYXu3K6fn3Co0oYqAOA/rD7qoLwQjMWBvSYDIc8H7UHn62GS7QoRm/e5VVURIPIatAL6xhV+wCNbe6D3ZKVthwZru2qEzwNNLvhYOh2tvFEYMCFxzYcWPIeWhn5Xi9QL9mLO32OvwBwI/VU/ilQiEzDVYbr9kJyLdCnJwPfjiNrUCGn+Sfw3l4tb930XvYlHWAJ+y45kCNC0g12BUh65rn4BzrIj9EVlNYGQU9AhDpKVb/YmoJHeXjeYZCnRXW2oEhT1lBWz49BUY17X3hxXvAceuaatcT5KlguLEB8FsOwDHKnQg9iGLyhvsAQbThGsgXU7wS1ghP3YdK3+DfrnycBY18hMMC2boIZ2TVNVcrbV5+T3jCg6JmbjvP8C+xKmILle8IKW7bq9zHqDoRXHYT/OWgaoJxqpjNorSSYYE27hPT+bZ7Fpi6r4P//rM7YG7OgeBbh92ErJsD+JrFfSY3yauK2pTUI9F4Wx+gLrdzqkcCyqN8mklUwkHTfaJon+V8XwVrvwUhhm1pIff1vzQoVcmcgYMNr+XpcIllISufqKetkmGuwJlLgeYydsU14cd6kInXEwmAUv/Aj/uwPvh7Dl4NurwTHzh18qtNDnL9ijV5VEJ8MG1twJe9QXfamuAahAwiaFphTTkOB4FGbC5NomI7NH+dOnydy31NpAK7wxDA++D8OFDAHA4UgAaHfZjGwaCFbYR0TWgGAf/t40a9wmzwImbbA07noqBlbyxYoOPLg3OMzZ+8A7vt/tc6p8ktBIY4TK+9MUbtBHIDy53RLkztyRqNwXLAI+yGMs2Ifh/tRGdJgK8R36Q/AKetm2Kdnk+76+I4xWE69woyKA1llO+SzQsYK220KgE5vNIAd5p4WImGFQmMLcD1oPuHX8L+nJBDy9dczRyBZRFzSyszlcIyA77H1OoROUYnD2RIpLumqswHhIypwUXDWoRL3iyN0mS920StIBS2K6AFkvflKRbSgrc6VzFe5GpPSo3QipuSiBra5QcgiA5tQ+qsvjZFqT9y5UFwoIlKHWhFoE6SiKcXUVDTihIJIceXT9fwnuD9f2Rn27227fc2QY5rbR1RuB+EoRnyQaACiLedSe4P2aABs89AHo5N5DCWutEkHQTdJ6KmhPI0Xx032h8cxkMfeVTOOIddgRAvYCYRMH2oul6sMY//cqb9Ec2GGr2+tdDlxGegowy1qVff77/0MdPHPjMpn+PMe9p6E8p+gXAcQcVPsPhSZGjO0EJg/X4H3+pZGYwgxFvutZHdz69tfH+/MvVoKfvcnRrpvXJo1nrAO53ddVmZ6NiNaem9jpfdFByuT/Hp6XA8OkKATBR0dlBcFaD2YM4Za5s3cOzgffloZswr8ahmQmdvVfQ5F0wS7esfbk0MemKAcOxcTBDtuwreBRrkVzeXjZBfCb40PpSlcl9kqCD7DR8RR/THfn9Mh2ZeIey4qEqo1ACVDWugpV5PrEzF8w+TSFAPKNSfONaZ4AQsPinX5XR55hplCA8N45xydaikFV3WnQQtH2q5Sg1P9v84PQNCmTRJn4dMZm89NFB/aYr27qI4PFvvjXhUrlcK3YbwzGALx/cT6KBrrZf7yLmF2wKwLvYhpf11gy2OhC+FlTT/XuKT7u4dbTNXNbxCFGZSCcXHKQdvfC57Xdr3L4T+VtszBlMYsiVPtv7DEuQynwL+/4cKY12iaNMTrViPI+ywN2jixvwutdcNLoz9uUyQAWUaPh8XJz3RtbFj5i0Gt8Sw076SIQY/+UnKpDruqWOaPT74MFD5iy6HZ4FrqzuyS5u6u5vn/E8r4Cu1q7WAUan5dsJO7ZsYmvoh6vTArk0DY8FmBfFg982IIJi6753OiA1oSRVZ1Bt+nVDvr+TZUFsxqc0myfgcQuNKzBKC/Hv2ySw91VlRP5xhphZkJk92RF8nmazUltXw6eKl4KoORUXZzkrygjc2YicczUCc50BYuMO+Mc/FJojcDf3brg7UWDXvqKauSUJtdinNCXao8g/VLLa7IBu9ZPNQDrkHVCTRCaat6I880YhYUb2oP8gZ+DFpkj3mjs5qJJ9fsiX3QT+WWQXrpytU6rf8wIV7X/Xb8XVfo9bgsEG8tDefjYjQ+vCBAO7rWLSKf05fIKvKy/fECTmfVaReiFB8C/tHwZRdbCWkxNoHt3mNDS7sgGQON9SwT+Bdsi48bWdndjy1JP77Oza//kk5iZK+q6fTGtrsPuGpBzh7XWBmK713OP4WP1eLnVKi0YN27Q7bwG6sbNbZDozLqwmjl9hkfPteO2NVqz3va71MS7SG4CbxIPI2FuhTxfOFdFRMCCZjHdEI7B6b3fzry4DJo2LkmKKvybX3w4HbHH4BrCNY80pkVAnYfG8nz8ZVnZ/vj9tL2pIg1MThI86zHHloieS/2VWdelptziuyFGU4+jaGEwAXUN+L9+pFt2ALJPZqTU7sHbbzmU3hGPSt4Kgk6DfABsMVim8DY3idCIrwpqEIfcG+CGa8kHGFsoWN8UnYUxI4G5QRVYnSg7ipaohvipMdUd75s7xJtmnwGjQTi62Dkg3FBiQ4B5hvBK3sTHW/SPLiAklu5zxHPbISzw8cB7MpTTjtg+Df2wIOZkQCvnio/CBYk0JvCD3VrZ0tQRav3l/5JS+K94+kfAxbZUxRmzq142nCjidt5Bb+OpqmHbBTYLFTD/YdLyHjcSTE3NVTp5VznnS0WSfwea3fafD03y3gg4/PS1D8MT31KSwP4hR1EI23cFsJvSC0juqZM6id7UuZfgZeLKGEUxK7oR8abefpumjsPPnfclMNCsqm1Cz8iK1DXtcQpgeVWyCs3ScDnS/pp9sO4nyaimc4LHsfKvkYvhNh0gqokQ0idJaHahX6dOj26pIQ7qlRIRxgNUkbGeMYMEcBzvZpS5X9GWlaMpd87hxENLTeQFAjda/Q2Uo+5Jg7a+FWuMCll2v9rcQpYRpxPxkExCeO/bT5O7rvLCXDjQX29K5t08rDbGfUYu8LGOuverpq2edKdxoyOrtRQS3shm7RV7o8mzVyr/w4earZCdndHaSxiRZz8828k354UF1VczclcoLW+azE01qiKsVldAD/qfV8T0KqOaFtcq3Pjan/0JSTwz8PCK2DcSgxUp4c8KynyyB1JIxIFYnBybRwvRHcBOcKh6lm/zVTv8ITjPxGDTVrfzLScZQ2Xjn0Mc3UOw7ngjctg6vI9QSyerV3V77VCLSaFnWjmaBmBdXLMP4Ga1IAv5RjWhj6CDD+/BRfv6cjzoSFpQFrQc/unpI0ukqilsA7fhHQLWH5ZDg/KGZuy9BRylkk3VMtrAN8mifaNoJrj87osdJ3sEtdCj3fNzmYYofVbis06p0v+AnClFAlr/K02HQW3khsDxrV1h86iT06Y9fmMueZje8Ndpl0XG3YPG/HCz9bHolZJlseqR4eF5ySUORkIOjNa3ZHJpdV4gustyPkhya0Umyni8h4i3ePp9jQBiG8BmZ7gdf6qIe6eVipuRVZ3kLBPF4MPmj+IB2pi2SlyzX6KkMC/vKvcREH3yRtvp7I53/kd1kbKT1GlxgnHTiLUuK5Zyw/pnNHQPzdHJegotU8mvys0N1xwe+4LLso0k27h0GGtpHHbPqpxj9+KlxUZlwJUrayCOMzoj6SA+0yk/srKckiANbL5qGjTi8lTyTpgxYhz5Y70GSamoIXt6+c0RXWLjySW2wU9nwFHwWRaUm6SOE/6TkLwdY0b+FFlV/hkkxx0O/048KrsufDskN9uSD5uR2lSCLFvOoo1BnO4dR5ErrKwF1ubruupPNuiJxDpT8njL3wwW95rxpoDlmdyTtIIEZhSER5Iko8MsRVMe/1CAGOhy39dWYfp7OFvKxLATScwyMXSh7dCD5W9rdbq8IunUC0S5PfrB9L+QDn3Pb4zkL1k+GuE9SPpMRfEXq4X6wyqcYFP2ZuIr4j+UVM8eLE5/RS1rgYxBrTx9itfGeoEp6KU4l6VbCH/EP/u/Gz7++NOKfAXkT1FRycKzkOchTOKWFRsnI2Y37kVw3b7ipy0i5HUt/nixYw/y6XiCt/c0aM3U9lNcRJvjJrJkvbnWYkwDUSdTZfl/XKZOkr6JYs2OX+hI8oxyeTq0IpCYbd+mTNG4bOzLSHwC9MxvThu9VltG6otzPfcoQ/yKeV3pDSEU9DaHvv8BWNg9V7xa9Ei18h7/U3tV056rr+XL+8VUz65lsoUh7URsY451et0y2EULai9KTzJ82VMEJa22V1X1GPvUvGhZr0nZqi8gpbwUxepGyJL/SdYsGlRDyDFoFkXjuCFUSH4TRk9z9V/GFTWzZRV5J/OCSjVkfCMe9z3dwFGbsEksQEhaVvd2feJBU+4NddW5f9zdCZRIUBZaICdvUQtwRka/68rF8MiNRjfuzFR85ahVFunPJRruvoiErxo+WQR8S807aeV2eOri+9pADl0a7TPcaR/kMMaSTSgXkqHin+4C+CH3bbzePlTIQuh4QSADs6d7zEXtX5rQZipXHpLcQTDhcHxJsGEoZDmsZ0nG3RFUHqGmC9+qGL2xOinIBTpYNhs9mf82kQM5E+1eUuTwyHGpr6//PmuqkmsFFS8l4cn7RGSC1U6BO5X42qb3ltK5fRcGNC8NSEnLAE2nt/hA0t8y5FxLgtmwnSZyONfL4Uf6C0HRMNtX46zvnywA8/a0AX6jqPJiSyHd5bu6/r2LMyoev3376l3mq7Jqi7XddmxJ9KWyMSsTHyfqVt33bV1sUVwSKCD9QdQFXZJcI1++7Wr4ISd/smKmJFwFkp8kKvcxXRw6X+XxnOJ+Pl02rS3T94GJ6gv/IViaOwvyUMnuRFMP5n84pJFGc8lBhePFRBV7hpnGTkDUGv6+tX0xPII8ilC9HX/nW25IP/nRQ2zhVo/JaV1nDas2HlZFhAWn0f6Udya9kRHNQ70FUlnuVzq2PZ1EnnragzN+WNl0YGdapssqEOqbiJEpJ9AagSyf2evN4S1rO/hPXkVzTZdyDMERlYddH1DJE3O6f+sM+E5dZ0lG4UCf5bigHi2JTswAsV9va/E+fPvG2NkhaaWkds0AfPrXb19eJb0zy77ezNXNzxku53O/xPbRpa2IbxfE6G+uiSG5IQF3F+vRT5cz2whNsHuhl/fpdryU79Bk+JwGslSxVLlLYcKLjso6WdDbV/2d3prJtJNAZOrZmDujCXFzyFeQ3QjJGKIeKs5c5G2jM36ycoKWDiFiJXjLqRhyZmNTcpvEfThFcnjM8vwHIhrcZCSn3+YPOqln5hOuUzUSMowl53LlPYmZtmRl/jskBb3hnX6mARbw/pgZ1SRLh4VHt/i22ui6qDvVNUUjCoJnFE5jPbFm5o6I2bvYtBm6upcv3FF5Zb+4NyxcDVcpFdmeBTQ6FBz1N5hLWuT/7+rSB9WKVNrlTYXDW3nB0X06dcFpzKoVnyqoeaLmy5QW+Ciobk8RLkeQbifvGzyOClkOzIelYHKT+15MGHPRMrNjrfOwNmBP/ntZxmSSalppRG79JtztkPAlpTZYowZYlJsoXr0XZMbbxoBBFUtOa635v00yWZIoUFypkzkuRc1zwmaZE3X7D6SenH4E/4PUXxI6GWc/GXxdf2mdVge8xdspyxf9tZfwwbB+5MPfebN/gENkCkR8ME6Kn7A5Ptf15ZD3+aSFthZUK1jAtLBRiksqqN4xcFl7pKrveVOCzuexYGAO5ElM6epf6C1wCKSDZ7yOFcxpwZY0QEP4I5401q2uAqcSsItmom5Wuadbu53zfRGMvUqiLhWm9LQv23j1mBpC8gkRygpCA5L6CtDaTPkIu0syQeieokY/w0IDigxsc7WK114zfUGxrWQbaqOIXbD5ZnIAkvOtQTzePHlftAy4xqmBaszfgv//Tbq8Fv36j/Q1PBYbhdApp4yhEOyNXK8d0B/37+j8iZH6XDlj9Vde/c2BrQVGqtaWM6D/PnoXsppSrKWDw8UJG86WtHASp99Fcl/dOu/Po/a5mYcj5wo6l4uLk8p/L9lBqkL4VVQVcX5FkV+rOSjK7TUxb/iWa/6Z6u8wFNhj1Gh1CmtFI8OCBJcM8GZocZqcmkkSSmfdttMAHDXTHV9VbFlLLPsfwVkYSFd6+3kYgyP0U8+Zx2T/Kb4Q6ubJJGKclv/EWt4W4aaX8puRAz+OeRt9LJVa3ZZ69A5L2baM5z4RXgTOXDh1tBTeoBtrLUELf7oe9xsi+Yi7S+j7QPTTb2oIQNKaEEw9ud6+vO2qfqiP5e/6T9euIojPxRp7iDt56KGeojxhXF9idOaGmtwfVUN5VUUn/EsvMcfEqqBLqJ32rYbo6eBpasd1czNXyCMF9o1FbiA4/We2WP0mvCYfU9n+RZErNPFFwDXBLOzW73O7jckCESbPUCT5DFhQcSt+hnhrflW7JBoo2iV8c0VBDr/6xpfPS7xagy+s0jJOPGlvdUqAqHAsp+Qljdk7VqQDDmzA9Za8qC2ig4kEsjHRdJdObSLA/cPNHbuMYUBrkBs+e8lC3eMNUYl5UWc/d+rr1mU0TzjBtpQI7EZH6/Gnk7SXSy3StdsFr5UM4oOt/kpJTSBdIylyspwShiL2fpyNIpXwvTxW5WLVnuB0I4KjVjcoOs5t2gysV8ycGEh/Cei5HfV/7nKxpyicakyTMjTsTW6t2QXEhxhJ3SPYRotIFLY92I9DNM0JEGL6VLZcGYQAKHUXFyQ/cyiFGFjwkeavE7FrMvJRuVqYl+sP/ZPbIZjGmYbWllTIfyj3mQfSzRykj8Id1RqvZi+VaiKyTC6DfKjYtI7c7cM2zveN6c26Ccfl0rl3QlWf39ImbKYmp6WturqGiqNtqp+iRI3CI3+7Tv6wILVT2T7jtRX8DNI9ZdUZtTxDso1yurDgcpwSK7BUpjfL7wB5Gfp0nSgyPV65i21Mv76QDPPGw66yEj+OZhkXiA33ocU7V0knKzfAvXuQVEH8HQXgY7Coy7WOQ+upaBv3VFGdVqZLdMUHrICjrK+lbhGxHaateOOEHXoc2gXonZQF1FLmn2XKk5W+/Dqqf7/X2H+ysbMw9z/VnKS34bJHHNNmyHEphgxcc9d4E5wLMKSsF0j5kPUMCS//8QkcbtpevV8s31692jXOWnGor0maPyyxV3IYT22yX3SwtIegmNdkc5u8/egDTBHQsn1RKzFdCpim+4k7OfR15t+kjG8eaQurP+jLh2421rXkg2l5ACb04xgXR8aWwspqEjvQ007vPcAyY0yrCWC29pxRAPY+y29GvVHq1xEBRvcD9j92Rtrf7QSz8kUqMJP9j64kIvczPc3UbiyRZskkq2KHJ8XOqgNIV+OMMPYKz7D+bL0CGMJ4OxcN7+FPQCWFr91NMZ3Ujr2zuy1wBr3KiaeMDCJKqVa3QsjIyTxRldADbbyN8aArQShZNUrXifit6CmlUmhmGOBgtOKuIvkvpCePqJe89nZmew51JJwKAS04q2ID0UvZupVA0pA6fhRsgNON6pXt/45147fRjUsR54TZvs2lQKifmsKNbhJB/dR0KGV9mR08p0hIU1Ahz19PEtfHSxCUQjFzaYQMGm/VV8YPEs23l9TQw/JkQYbR77D63BFbroYdokaaIHnr0v4ml33pMKqy6JBm3F6DF208ImU0aPGSQC5jPLxv9dOU4DF/rjkMvZS3N05G90W+0/5Ms+IYm7mFumuyKYXyBeobX/wwRu9IXoXrTkAwEMU4dIVrDwa9jho81ySNe+g665SMxZvA18ui8NfWk32dsD35TLJdd+We9KyUL5UNIHay02/inBNjmcq31DMupU3cOgSlSES8dUQNJuBOlqMFr9LFn0PeCEgK6jhnnWrikxqoFgOroJEjzbnLP1QnAwJ8z4vYks9aw+41WHY420aPN1iLxOJC9FA99yKf7mRyqYPedhygjG6iaiRP0DjGHJi7Xx59lfZZfNF1N7/j75f5Ws7C0=", "int8", (64, 128)).astype(np.dtype("int8")), (0, 1), (1, 1), (0, 0), (0, 0))
    a15 = from_text("eNoVlH+QEFQRx/dHscQYAncSYHbHHIcGiIjjjFR4gJNzHGFIhkkYznElwpjCCZeab9+SKdgPQkcnmk5+6KSDihIQB5edkAIqyuEPZDQ59RLCC0ZS0fTc7TVvZv958/btfr+f3d1XSU0Ke6m/DGziHQijjy6Xl3y45wx2OoqQhcnNya89QMoxzaDxLxmcnneVxzk3w5YPN8VJls9WKh+aYlkazOHckQZ5ElWW13dz1sOxK2oN9Bi15J+yVT39I4BdlIWn3rM0ZyW2Qym71dDX8RUBmJseBOjdeFR3ejdvJq7mFyqdlmDruK9JxRdue3gsjU0sVv6Kodgu/WMKgmgi1Qzv4wcdIf1TnvhzESZKda6U+gnBgWRA6R84eRRWy1W+Ac6sppH2C3SKCxM0dl6v43tjwJpqOmZLgM3b8djK5fnS7S8nlFiKqCmnEYMfiPTcnm/cJEi0bP7JPOOKdPMEgNPj1z4tKEECOd5j7+KDE8EA8udRQsvGZ6pq48kOTPBH/dYg03zkiRwOM7stt3NSueEJw0gXfPgDaKkBvuTshVsnyd+RuRQsyEKngL4CoDNkfTEg+2SuHMjb1PZdPBcNQptffCQeVf+bi1P2zhlJP5UMSWAfrhNQ+qh5GLzu54g4pNAYn9P72A/GD5xSo9v+eTD7QRS86ztbowbTG5dHsV3TZDtXvBQ6qeIaRc7OHmpInavqzjE7zI9LwEIlK849iz4TAgT4/kTO15SG7XPafRj2bghjnkv+ZUht1UA+FHh1vg+I8i2Q9Oh1/2n05mG3AzA88mSfWFeUq1yTu3DRnBBJOojyxl3dK0Zm/f2VB7N9bLkIgVOLIDAhzF01wd76HzIvxdqWtKeYw5mxTTdVn0hvnpdGt542TU+a4BkDStcsME90XcpRAQNv66HGubDK0hlvY0A6/y5Fv2zvn77Xxytwty+8LBl3MnsSxbtR/QiRdQQzv3eFf1dp0fDvszuzlvsl9X1NTE/Egoyjef36fAcMlvTFHxP9lZRkKH/7RkPLP8EKjSFi4O2xNQf9MoLj37V44LG0cl745qwC/qub9vkeO4sxU08qSpnVx/4dhScY1jFdYWdi4iuhsi6zPV/E/nS2934Jk69tv5/rWkYYdz0Hizpf4NVusJ0xfqO99C5I0SzNIQykeXU8s+0IqL8FDg0wO4hUliM1RAy6xT6bqVnPiwLjMz5GBkz5bfJNIvnUQ8umpTEOBNUwtjt7jMrFX+2YfsmJk73tdh1bar2a+tYORhkPsi22yv+1PmaLMxqfOa6wmTWadtuGP5RRHBqJc7xeYOmbl71FzcVBxzUZmKE0NbiAwMqMgJ88xYUvnyW7siey1ajLJ8Jj8LDQJy4hPWv3JcJ0yP7VNR88zbAiF6TcQxcoZG94J8H6n5UiJQlFxnFF0ZLU86yru++5lXw7xynIyA6qKyaINHEJY+tjVgG9nExnMVxEEE59RiXIdK/5FrvcZtsDQfEBXNp1kdG1VlbjcS+zVSe4VF/0yYCdZ6fOfu8kdiIZTnJ+YxVU48cy6M+eN0Na9V7oAhtSD78LntraVvK3lv8BhpgsXhthWjCy26UKXn4tmdz5CmFeG6lNGuQ190dpB2x2nOPDef78/Vy1843F3Nr0zSAtc/TfEt2NECj44rIAwR9y5DJm+3uOw4kFmlfcWDjYC6+uCD9ttEqTQBfwmK+WFfEU5S2u/wP3sV1x", "int8", (64, 24)).astype(np.dtype("int8"))
    o23 = laid_out(np.array([[77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77]]).astype(np.dtype("int64")), (0, 1), (1, 1), (0, 0), (0, 0))
    compiled.interpret(a5, a8, a15, o23, level="lane", order="random", seed=77120063)
    np.testing.assert_array_equal(o23, np.array([[7784, -38132, -19017, -19787, -28061, -29966, -21168, -3731, 75229, -24829, -19972, -81443, 53418, 77356, 35227, 17237, -3356, 57460, 39186, 55727, 76832, -22341, 41452, -39247]]))


if __name__ == "__main__":
    check()

PROGRAM = "Program(dims=(Dim(name='M', size=1, tile=64, axis=1, wave=0), Dim(name='N', size=24, tile=64, axis=2, wave=0), Dim(name='K', size=128, tile=64, axis=None, wave=0), Dim(name='L', size=64, tile=32, axis=None, wave=0)), arrays=(Array(name='a5', dims=('K', 'M'), dtype='f8e5m2fnuz', content='extreme', space='GLOBAL_ADDRESS_SPACE', layout=None), Array(name='a8', dims=('L', 'K'), dtype='i8', content='extreme', space='GLOBAL_ADDRESS_SPACE', layout=Layout(order=(0, 1), steps=(1, 1), before=(0, 0), after=(0, 0))), Array(name='a15', dims=('L', 'N'), dtype='i8', content='extreme', space='SPACE', layout=None), Array(name='o23', dims=('M', 'N'), dtype='i64', content='poison', space='GLOBAL_ADDRESS_SPACE', layout=Layout(order=(0, 1), steps=(1, 1), before=(0, 0), after=(0, 0)))), body=(Fill(name='x1', dims=('M', 'N'), dtype='i32', value=0), Loop(name='loop19', dim='L', init=('x1',), params=('p2',), body=(Fill(name='x4', dims=('M', 'L'), dtype='i32', value=0), Loop(name='loop12', dim='K', init=('x4',), params=('p3',), body=(Read(name='x6', array='a5', mapping=None, per_thread=0), Cast(name='x7', x='x6', dtype='i8'), Read(name='x9', array='a8', mapping=None, per_thread=0), Mma(name='x10', a='x7', b='x9', acc='p3')), returns=('x10',), results=('r11',), start=0, stop=0, step=0), Cast(name='x13', x='r11', dtype='i8'), Read(name='x16', array='a15', mapping=None, per_thread=0), Mma(name='x14', a='x13', b='x16', acc='p2')), returns=('x14',), results=('r18',), start=0, stop=0, step=0), Cast(name='x22', x='r18', dtype='i64'), Write(x='x22', array='o23', mapping=None, per_thread=0)), seed=77120063, workgroups=0, dealt=False, mapping='', opens=(), threads_per_wave=0, mma_type='', prefetch=False, buffers=None, named_tiles=False, left_open=(), declared_open=False, numbers=(), arrays_before=0, by_name=False, more=())"
