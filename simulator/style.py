"""The style sheet of the HTML report: light and dark, wide and narrow, no fonts from elsewhere."""

STYLE = """\
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2430; --soft: #5b6675; --rule:
  #e2e6eb;
--accent: #2563a8; --committed: #2563a8; --provisional: #e0912f; --scratch: #9aa5b1; --second: #2f9e77;
  --warn: #b3402a; --shade: #0003; }
@media (prefers-color-scheme: dark) { :root { --page: #14181e; --card: #1c222a; --ink: #e6eaf0; --soft:
  #97a3b2;
--rule: #2e3742; --accent: #6fa8e6; --committed: #5b9be0; --provisional: #e8a450; --scratch: #7d8896;
  --second: #54c29a; --warn: #ef8a72; --shade: #000a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system,
  "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 34px 0 10px; }
h3 { font-size: 14px; margin: 0 0 8px; }
.note { color: var(--soft); margin: 4px 0; font-size: 13px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 14px 0 0; font-size: 14px; }
a { color: var(--accent); }
details { border: 1px solid var(--rule); border-radius: 10px; margin: 8px 0; }
summary { background: var(--card); border-radius: 10px; padding: 10px 16px; cursor: pointer; }
summary .note { margin-left: 8px; }
details[open] > summary { border-bottom: 1px solid var(--rule); border-radius: 10px 10px 0 0; }
details > .body { padding: 12px 14px; }
.chips { display: flex; flex-wrap: wrap; gap: 6px; margin: 10px 0 0; }
.chip { border: 1px solid var(--rule); background: var(--card); border-radius: 999px; padding: 2px 11px;
  font-size: 13px; }
.chip b { color: var(--soft); font-weight: 500; margin-right: 5px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 10px; margin:
  12px 0; }
.card, .panel { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.card { padding: 11px 14px; }
.panel { padding: 14px 16px; min-width: 0; }
.card .name { color: var(--soft); font-size: 12.5px; }
.card .value { font-size: 23px; white-space: nowrap; font-weight: 650; font-variant-numeric:
  tabular-nums; }
.card .value small { font-size: 13px; font-weight: 500; color: var(--soft); margin-left: 4px; }
.card .more { color: var(--soft); font-size: 12px; }
.grid2, .grid3 { display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px;
  margin: 12px 0; }
.grid3 { grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); }
@media (max-width: 560px) { .grid2, .grid3 { grid-template-columns: 1fr; } }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { text-align: right; padding: 5px 8px; white-space: nowrap; border-bottom: 1px solid var(--rule); }
tbody th:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 550; }
thead th[colspan] { color: var(--ink); text-align: center; }
tbody th { font-weight: 500; }
tr:last-child > * { border-bottom: 0; }
td.best { color: var(--second); font-weight: 650; }
.scroll { overflow-x: auto; background: linear-gradient(to left, var(--card) 30%, transparent) right / 40px 100%
  no-repeat local, linear-gradient(to left, var(--shade), transparent) right / 16px 100% no-repeat scroll,
  var(--card); }
tbody th:first-child, th[rowspan] { position: sticky; left: 0; background: var(--card); }
.chart { width: 100%; height: auto; display: block; }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.chart .tick { fill: var(--soft); font-size: 11px; }
.chart .label { fill: var(--ink); font-size: 12.5px; }
.area { stroke: none; fill: var(--accent); fill-opacity: .16; }
.line { fill: none; stroke: var(--accent); stroke-width: 1.6; stroke-linejoin: round; }
.area.committed { fill: var(--committed); fill-opacity: .6; }
.area.provisional { fill: var(--provisional); fill-opacity: .7; }
.area.scratch { fill: var(--scratch); fill-opacity: .7; }
.line.second { stroke: var(--second); }
.area.second { fill: var(--second); }
.line.warn { stroke: var(--warn); }
.area.warn { fill: var(--warn); }
.line.third { stroke: #8a63b8; }
.line.fourth { stroke: #b89b3f; }
.dot { fill: var(--accent); }
.dot.second { fill: var(--second); }
.dot.third { fill: #8a63b8; }
.dot.warn { fill: var(--warn); }
.dot.fourth { fill: #b89b3f; }
.cut { fill: var(--accent); }
.cut.committed { fill: var(--committed); }
.cut.provisional { fill: var(--provisional); }
.cut.scratch { fill: var(--scratch); }
.cut.second { fill: var(--second); }
.cut.third { fill: #8a63b8; }
.cut.warn { fill: var(--warn); }
.cut.fourth { fill: #b89b3f; }
.swatch.third { background: #8a63b8; }
.swatch.fourth { background: #b89b3f; }
.verdict { margin: 4px 0; font-size: 15px; }
.gap { margin-top: 14px; }
.ceiling { stroke: var(--warn); stroke-dasharray: 5 4; stroke-width: 1.3; }
.hover { fill: transparent; }
.hover:hover { fill: var(--ink); fill-opacity: .08; }
.range { stroke: var(--accent); stroke-width: 3; stroke-opacity: .35; stroke-linecap: round; }
.mark { fill: var(--accent); }
.m0 { fill: var(--second); }
.m2 { fill: var(--provisional); }
.m3 { fill: var(--warn); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; justify-content: flex-end; font-size: 12px; color: var(--soft);
  min-height: 4px; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 5px;
  background: var(--accent); }
.swatch.committed { background: var(--committed); }
.swatch.provisional { background: var(--provisional); }
.swatch.scratch { background: var(--scratch); }
.swatch.second, .swatch.m0 { background: var(--second); }
.swatch.warn, .swatch.m3 { background: var(--warn); }
.swatch.m2 { background: var(--provisional); }
.diagram { text-align: center; overflow-x: auto; }
@media (max-width: 560px) { main { padding: 18px 12px 40px; } .chart .tick { font-size: 14px; }
  .cards { grid-template-columns: 1fr 1fr; } .card .value { font-size: 19px; white-space: normal; }
  .scroll tbody th { white-space: normal; min-width: 128px; }
  .panel { padding: 12px; } details > .body { padding: 8px; } }
@media print { body { background: #fff; } .card, .panel { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; } }
"""
