// See html_page.h.
#include "launcher/loadtest/html_page.h"

#include <absl/strings/str_cat.h>

namespace outrider {
namespace {

constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--card:#f5f7f9;--rule:#d5dae0;
--warn:#9a3412;--s0:#0072b2;--s1:#d55e00;--s2:#00805d;--s3:#b0528a;--s4:#8a6d00;--s5:#555b61}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ed;--soft:#a0a9b4;--paper:#14171b;--card:#1e2329;
--rule:#39414a;--warn:#fdba74;--s0:#56b4e9;--s1:#f08a3c;--s2:#2cc295;--s3:#e29ac4;--s4:#e8d44d;--s5:#b8bfc7}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1rem;font:1rem/1.5 system-ui,sans-serif;color:var(--ink);
background:var(--paper)}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0 1rem}
h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--rule);padding-bottom:.25rem}
p{max-width:46rem}
.warning{color:var(--warn);border-left:.25rem solid var(--warn);padding-left:.75rem;font-weight:600}
.headline{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.5rem;margin:0}
.headline div{background:var(--card);border-radius:.5rem;padding:.5rem .75rem}
.headline dt{color:var(--soft);font-size:.85rem}
.headline dd{margin:0;font-size:1.3rem;font-weight:600}
.facts{display:grid;grid-template-columns:fit-content(45%) 1fr;gap:.15rem 1rem;margin:0;
break-inside:avoid}
.facts dt{color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
.scroll{overflow-x:auto;background:
linear-gradient(to left,var(--paper) 50%,transparent) 100% 0/3rem 100% no-repeat local,
linear-gradient(to left,var(--rule),transparent) 100% 0/1.25rem 100% no-repeat scroll}
table{border-spacing:0;font-variant-numeric:tabular-nums;font-size:.95rem;width:100%}
table{border-bottom:1px solid var(--rule)}
th,td{text-align:right;padding:.3rem .45rem;white-space:nowrap;vertical-align:top}
tbody th,tbody td{border-top:1px solid var(--rule)}
th:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
thead th{color:var(--soft);font-weight:600;font-size:.9em;white-space:normal;vertical-align:bottom}
td small,th small{display:block;color:var(--soft);font-size:.75rem;font-weight:400;line-height:1.2;
white-space:normal}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1.25rem}
figure{margin:0;min-width:0;break-inside:avoid}
figure h3{font-size:1rem;margin:0 0 .25rem}
figcaption{color:var(--soft);font-size:.85rem}
figure>svg{display:block;width:100%;height:auto}
svg text{font:13px system-ui,sans-serif;fill:var(--ink)}
svg .grid{stroke:var(--rule);fill:none}
svg .axis{stroke:var(--soft);fill:none}
svg .line{fill:none;stroke-width:2;stroke-linejoin:round}
svg .whisker{fill:none;stroke-width:2}
svg .label{paint-order:stroke;stroke:var(--paper);stroke-width:3px}
svg .dots{fill:none;stroke-width:5;stroke-linecap:round;opacity:.7}
svg .big{stroke-width:9;opacity:1}
svg .hole{fill:none;stroke:var(--paper);stroke-width:4;stroke-linecap:round}
.s0{stroke:var(--s0)}.s1{stroke:var(--s1)}.s2{stroke:var(--s2)}
.s3{stroke:var(--s3)}.s4{stroke:var(--s4)}.s5{stroke:var(--s5)}
.dots.s1,.dots.s3,.dots.s5,.hole.h3{stroke-linecap:square}
svg .big.s4,svg .big.s5{stroke-width:6}
.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:9 3 2 3}
.d4{stroke-dasharray:4 2}.d5{stroke-dasharray:1 2}
.legend{display:flex;flex-wrap:wrap;gap:.1rem 1rem;font-size:.85rem}
.legend svg{width:1.75rem;height:.6rem;margin-right:.35rem}
@media (max-width:40rem){body{padding:.75rem}table{font-size:.8rem}th,td{padding:.3rem .2rem}
th:first-child{white-space:normal}td small{font-size:.7rem}}
@media print{:root{font-size:10pt;color-scheme:light;--ink:#000;--soft:#444;--paper:#fff;
--card:#fff;--rule:#bbb;--warn:#7c2d12;--s0:#0072b2;--s1:#d55e00;--s2:#00805d;--s3:#b0528a;
--s4:#8a6d00;--s5:#555b61}
body{max-width:none;padding:0 1px}.scroll{overflow:visible;background:none;break-inside:avoid}
th:first-child{position:static;background:none}
.headline div{border:1px solid var(--rule)}
h2{break-after:avoid}tr{break-inside:avoid}.figures{grid-template-columns:1fr 1fr}
th,td{padding:.2rem .3rem}}
)";

}  // namespace

HtmlPage::HtmlPage(const std::string& title) : title_(escape_html(title)) {}

void HtmlPage::section(const std::string& title) {
  absl::StrAppend(&body_, "<h2>", escape_html(title), "</h2>\n");
}

void HtmlPage::paragraph(const std::string& text) {
  absl::StrAppend(&body_, "<p>", escape_html(text), "</p>\n");
}

void HtmlPage::warning(const std::string& text) {
  absl::StrAppend(&body_, "<p class=\"warning\">", escape_html(text), "</p>\n");
}

void HtmlPage::headline(const std::vector<std::pair<std::string, std::string>>& numbers) {
  body_ += "<dl class=\"headline\">\n";
  for (const auto& [value, what] : numbers) {
    absl::StrAppend(&body_, "<div><dt>", escape_html(what), "</dt><dd>", escape_html(value),
                    "</dd></div>\n");
  }
  body_ += "</dl>\n";
}

void HtmlPage::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  body_ += "<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) {
    absl::StrAppend(&body_, "<dt>", escape_html(name), "</dt><dd>", escape_html(value), "</dd>\n");
  }
  body_ += "</dl>\n";
}

void HtmlPage::table(const std::vector<std::string>& head,
                     const std::vector<std::vector<Cell>>& rows) {
  body_ += "<div class=\"scroll\"><table>\n<thead><tr>";
  for (const std::string& cell : head) {
    absl::StrAppend(&body_, "<th scope=\"col\">", escape_html(cell), "</th>");
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    body_ += "<tr>";
    for (const Cell& cell : row) {
      const bool first = &cell == &row.front();
      absl::StrAppend(&body_, first ? "<th scope=\"row\">" : "<td>", escape_html(cell.text));
      if (!cell.small.empty()) {
        absl::StrAppend(&body_, "<small>", escape_html(cell.small), "</small>");
      }
      body_ += first ? "</th>" : "</td>";
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::figure(const std::string& title, const std::string& svg,
                      const std::vector<std::string>& series, const std::string& caption,
                      Mark mark) {
  if (svg.empty()) return;
  absl::StrAppend(&body_, "<figure><h3>", escape_html(title), "</h3>\n");
  if (series.size() > 1) {
    body_ += "<div class=\"legend\">";
    for (size_t i = 0; i < series.size(); ++i) {
      if (series[i].empty()) continue;
      const std::string line = "<path class=\"" + line_classes(i) + "\" d=\"M0 5H28\"/>";
      absl::StrAppend(&body_, "<span><svg viewBox=\"0 0 28 10\">", mark == Mark::dots ? "" : line,
                      mark == Mark::line ? "" : dots(i, true, "M14 5h.1"), "</svg>",
                      escape_html(series[i]), "</span>");
    }
    body_ += "</div>\n";
  }
  body_ += svg;
  if (!caption.empty()) {
    absl::StrAppend(&body_, "<figcaption>", escape_html(caption), "</figcaption>");
  }
  body_ += "</figure>\n";
}

std::string HtmlPage::text() const {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      title_, "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<h1>", title_, "</h1>\n",
      body_, "</body>\n</html>\n");
}

}  // namespace outrider
