"""How smoothly the explorer plays: frames a second of a launch in a real browser, and what one frame costs its script.

python benchmarks/explorer_frames.py            (chromium and chromedriver; the screen's 60 a second are the most)
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tilewave.explore.choice import ExplorerChoice
from tilewave.explore.explorer import Explorer
from tilewave.explore.kernels import ExploredGemm
from tilewave.explore.server import ExplorerServer

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import chromium

GRIDS = (16, 64, 128, 256, 512)
SECONDS = 4
FRAMES = """
const [seconds, done] = arguments, gaps = [], costs = [], ask = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (call) => ask((now) => {
  const begun = performance.now(); call(now); costs.push(performance.now() - begun);
});
document.getElementById('lasts').innerHTML = `<option value=${seconds + 1}>`;
document.getElementById('play').click();
const begun = performance.now();
let last = begun;
const next = (now) => {
  gaps.push(now - last); last = now;
  if (now - begun < 1000 * seconds) ask(next);
  else {
    const grids = document.querySelectorAll('.cells').length, at = (list, part) => list[Math.floor(list.length * part)];
    for (const list of [gaps, costs]) list.sort((a, b) => a - b);
    done([grids, gaps.length / seconds, at(gaps, 0.5), at(gaps, 0.99), at(costs, 0.5), at(costs, 0.99)]);
  }
};
ask(next);
"""


def main() -> None:
    server = ExplorerServer(
        Explorer(ExploredGemm(), ExplorerChoice(beside="linear()", map="xcd_contiguous(8) >> grouped(8)"))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    titles = "tiles", "grids", "frames/s", "median ms", "99th ms", "script ms", "99th ms"
    print("".join(f"{title:>11}" for title in titles))
    with chromium() as browser:
        for side in GRIDS:
            browser.visit(server.address, f"#shape={128 * side}x{128 * side}x64&tile=128x128x64")
            browser.wait_until("return document.getElementById('main').getAttribute('aria-busy') === 'false'")
            browser.driver.set_script_timeout(60)
            grids, *times = browser.driver.execute_async_script(FRAMES, SECONDS)
            print(f"{f'{side}x{side}':>11}{grids:>11}" + "".join(f"{time:>11.1f}" for time in times))
    server.shutdown()


if __name__ == "__main__":
    main()
