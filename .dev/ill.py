import sys, numpy as np, torch
from tilewave import *
M,N,K,P5 = sym.M, sym.N, sym.K, sym.P5
G,S = GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
shift, dt, mapped_write, three = int(sys.argv[1]), {"i8": (i8,i32,torch.int8), "f16": (f16,f32,torch.float16), "f8": (f8e4m3fn, f32, torch.float8_e4m3fn)}[sys.argv[2]], sys.argv[3] == "1", sys.argv[4] == "1"
rev = IndexMapping(2, inputs={M: i, N: j}, outputs={M: i, N: 0 - j})
sizes = {M: 1, N: 1, K: 64, P5: 1}
B = Memory[N, P5, K, S, dt[0]] if three else Memory[N, K, S, dt[0]]
bm = IndexMapping(2, inputs={N: j, **({P5: 0} if three else {}), K: i + shift}, outputs={K: i, N: j})
def kernel(a, b, o):
    @iterate(K, init_args=[Register[M, N, dt[1]](0)])
    def total(p):
        return mma(read(a), read(b, mapping=bm), p)
    r = cast(total, f64)
    write(r, o, mapping=rev) if mapped_write else write(r, o)
kernel.__annotations__ = dict(a=Memory[M, K, S, dt[0]], b=B, o=Memory[M, N, G, f64])
k = wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 16, 1), TilingConstraint(K, 32)])(kernel)
c = wave_compile(WaveCompileOptions(subs=sizes, target="sm_90a"), k)
a = torch.randint(-4, 5, (1, 64)).to(dt[2]).cuda(); b = torch.randint(-4, 5, (1, 1, 64) if three else (1, 64)).to(dt[2]).cuda()
o = torch.full((1, 1), float("nan"), dtype=torch.float64).cuda()
c(a, b, o); torch.cuda.synchronize()
w = (a.double().cpu().reshape(-1)[:64-shift] * b.double().cpu().reshape(-1)[shift:]).sum().item()
print(sys.argv[1:], o.item(), w, "maps", "tensormap" in c.asm or "cp.async.bulk.tensor" in c.asm, "OK" if o.item() == w else "WRONG")
