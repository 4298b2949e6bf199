// See svg_plot.h.
#include "launcher/loadtest/svg_plot.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "core/error.h"

namespace outrider {
namespace {

// Units of the view box: on a telephone one is a little less than a pixel.
constexpr double kWidth = 400, kHeight = 260;
constexpr double kLeft = 62, kRight = 12, kTop = 20, kBottom = 40;
constexpr size_t kColours = 6;   // then they come again, with other dashes
constexpr double kFarApart = 8;  // greatest / least: a logarithmic axis is readable

// Maps values to positions.
class Scale {
 public:
  // From the first tick to the last. from, to: positions of the axis' ends.
  Scale(bool logarithmic, std::vector<double> ticks, double from, double to)
      : logarithmic_(logarithmic), from_(from), to_(to), ticks_(std::move(ticks)) {
    least_ = ticks_.front();
    most_ = ticks_.back();
  }
  const std::vector<double>& ticks() const { return ticks_; }
  double operator()(double value) const {
    const double share = logarithmic_ ? std::log(value / least_) / std::log(most_ / least_)
                                      : (value - least_) / (most_ - least_);
    return from_ + share * (to_ - from_);
  }

 private:
  bool logarithmic_;
  double from_, to_;
  std::vector<double> ticks_;
  double least_, most_;
};

// Logarithmic where that is asked for and readable, or else linear from 0.
Scale scale(bool logarithmic, std::pair<double, double> range, double from, double to) {
  const auto [least, most] = range;
  logarithmic = logarithmic && least > 0 && most / least >= kFarApart;
  return {logarithmic, logarithmic ? logarithmic_ticks(least, most) : linear_ticks(0, most, 5),
          from, to};
}

std::string text_at(double x, double y, const char* anchor, const std::string& text,
                    const char* more = "") {
  return absl::StrFormat("<text x=\"%.4g\" y=\"%.4g\" text-anchor=\"%s\"%s>%s</text>", x, y, anchor,
                         more, escape_html(text));
}

// About as wide as the widest font that it may be shown in.
double text_width(const std::string& text) { return 8.3 * static_cast<double>(text.size()); }

std::string line(const char* css_class, double x1, double y1, double x2, double y2) {
  return absl::StrFormat("<path class=\"%s\" d=\"M%.5g %.5gL%.5g %.5g\"/>", css_class, x1, y1, x2,
                         y2);
}

std::string open_svg(const std::string& title, double height = kHeight) {
  return absl::StrFormat("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">", kWidth,
                         height, escape_html(title));
}

std::string y_axis(const Scale& y, const std::string& label) {
  std::string svg;
  for (const double tick : y.ticks()) {
    svg += line("grid", kLeft, y(tick), kWidth - kRight, y(tick));
    svg += text_at(kLeft - 5, y(tick) + 4, "end", absl::StrFormat("%.6g", tick));
  }
  const double middle = (kTop + kHeight - kBottom) / 2;
  return svg + text_at(12, middle, "middle", label,
                       absl::StrFormat(" transform=\"rotate(-90 12 %.4g)\"", middle).c_str());
}

std::string x_axis(const Scale& x, const std::string& label) {
  std::string svg = line("axis", kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom);
  const auto text_of = [](double tick) { return absl::StrFormat("%.6g", tick); };
  const double last_begin = kWidth - 2 - text_width(text_of(x.ticks().back()));
  double free_from = 0;  // beyond the text before
  for (const double tick : x.ticks()) {
    svg += line("axis", x(tick), kHeight - kBottom, x(tick), kHeight - kBottom + 4);
    const std::string text = text_of(tick);
    const double half = text_width(text) / 2 + 2;
    if (tick == x.ticks().back()) {  // in the middle it would stand out of the picture
      svg += text_at(kWidth - 2, kHeight - kBottom + 16, "end", text);
    } else if (x(tick) - half >= free_from && x(tick) + half <= last_begin) {
      svg += text_at(x(tick), kHeight - kBottom + 16, "middle", text);
      free_from = x(tick) + half;
    }
  }
  return svg + text_at((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", label);
}

// At positions rounded to `grid`, each once.
std::vector<std::pair<double, double>> positions(const Series& series, const Scale& x,
                                                 const Scale& y, double grid, bool any_order) {
  std::vector<std::pair<double, double>> all;
  std::set<std::pair<double, double>> seen;
  for (const Point& point : series.points) {
    const std::pair at = {std::round(x(point.x) / grid) * grid,
                          std::round(y(point.y) / grid) * grid};
    const bool again = any_order ? !seen.insert(at).second : !all.empty() && all.back() == at;
    if (!again) all.push_back(at);
  }
  return all;
}

// Above or below their points; where both is taken by a point or a label, not at all: points that
// are so near each other mostly have the same one. taken: {left, bottom, right} of a line's height.
std::string labels(const Series& series, const Scale& x, const Scale& y,
                   std::vector<std::array<double, 3>>& taken) {
  constexpr double kLineHeight = 13;
  std::string svg;
  for (const Point& point : series.points) {
    if (point.label.empty()) continue;
    const double px = x(point.x), width = text_width(point.label);
    const bool at_right = px > kWidth * 0.75, at_left = px < kLeft + 15;
    const double left = at_right ? px + 4 - width : (at_left ? px : px - width / 2);
    for (const double baseline : {y(point.y) - 9, y(point.y) + 18}) {
      const bool free = std::ranges::none_of(taken, [&](const std::array<double, 3>& other) {
        return left < other[2] && other[0] < left + width &&
               std::abs(baseline - other[1]) < kLineHeight;
      });
      if (!free || baseline > kHeight - kBottom) continue;
      taken.push_back({left, baseline, left + width});
      svg += text_at(px + (at_right ? 4 : 0), baseline,
                     at_right ? "end" : (at_left ? "start" : "middle"), point.label,
                     " class=\"label\"");
      break;
    }
  }
  return svg;
}

std::string draw(const Series& series, size_t index, Mark mark, const Scale& x, const Scale& y) {
  std::string svg;
  if (mark != Mark::dots) {
    std::string path;
    for (const auto& [px, py] : positions(series, x, y, 0.1, false)) {
      absl::StrAppendFormat(&path, "%c%.5g %.5g", path.empty() ? 'M' : 'L', px, py);
    }
    svg += absl::StrFormat("<path class=\"%s\" d=\"%s\"/>", line_classes(index), path);
  }
  if (mark != Mark::line) {
    std::string path;  // lines of nearly no length, whose ends are the dots
    for (const auto& [px, py] : positions(series, x, y, 1, true)) {
      absl::StrAppendFormat(&path, "M%.5g %.5gh.1", px, py);
    }
    svg += dots(index, mark != Mark::dots, path);
  }
  return svg;
}

// The range of one coordinate of all points.
template <typename Get>
std::pair<double, double> range_of(const std::vector<Series>& all, Get get) {
  std::pair<double, double> range = {INFINITY, -INFINITY};
  for (const Series& series : all) {
    for (const Point& point : series.points) {
      CHECK(std::isfinite(get(point)));
      range = {std::min(range.first, get(point)), std::max(range.second, get(point))};
    }
  }
  return range;
}

std::string draw(const Whisker& whisker, size_t series, double px, const Scale& y) {
  constexpr double kHalf = 3;  // of the strokes at the ends
  std::string svg;
  if (whisker.low < whisker.high) {
    svg += absl::StrFormat(
        "<path class=\"whisker s%d\" d=\"M%.4g %.4gV%.4gM%.4g %.4gh%gM%.4g %.4gh%g\"/>",
        series % kColours, px, y(whisker.low), y(whisker.high), px - kHalf, y(whisker.low),
        2 * kHalf, px - kHalf, y(whisker.high), 2 * kHalf);
  }
  return svg + dots(series, true, absl::StrFormat("M%.4g %.4gh.1", px, y(whisker.value)));
}

}  // namespace

std::string line_classes(size_t series) {
  return absl::StrFormat("line s%d d%d", series % kColours,
                         (series + series / kColours) % kColours);
}

std::string dots(size_t series, bool big, const std::string& path) {
  const size_t colour = series % kColours;
  std::string svg =
      absl::StrFormat("<path class=\"dots%s s%d\" d=\"%s\"/>", big ? " big" : "", colour, path);
  if (big && (colour == 2 || colour == 3)) {
    svg += absl::StrFormat("<path class=\"hole h%d\" d=\"%s\"/>", colour, path);
  }
  return svg;
}

std::string to_svg(const Plot& plot) {
  const auto x_range = range_of(plot.series, [](const Point& point) { return point.x; });
  const auto y_range = range_of(plot.series, [](const Point& point) { return point.y; });
  if (x_range.first > x_range.second) return "";
  const Scale x = scale(plot.x.logarithmic, x_range, kLeft, kWidth - kRight),
              y = scale(plot.y.logarithmic, y_range, kHeight - kBottom, kTop);
  std::string svg = open_svg(plot.title) + y_axis(y, plot.y.label) + x_axis(x, plot.x.label);
  for (size_t i = 0; i < plot.series.size(); ++i) svg += draw(plot.series[i], i, plot.mark, x, y);
  std::vector<std::array<double, 3>> taken;
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      if (!point.label.empty()) taken.push_back({x(point.x) - 5, y(point.y) + 5, x(point.x) + 5});
    }
  }
  for (const Series& series : plot.series) svg += labels(series, x, y, taken);
  return svg + "</svg>";
}

std::string to_svg(const WhiskerPlot& plot) {
  double least = 0.99 * plot.reference, most = 1.01 * plot.reference;
  for (const auto& series : plot.series) {
    for (const Whisker& whisker : series.whiskers) {
      least = std::min(least, whisker.low);
      most = std::max(most, whisker.high);
    }
  }
  const Scale y(false, linear_ticks(plot.reference == 0 ? 0 : least, most, 5), kHeight - kBottom,
                kTop);
  constexpr double kNoLabel = 18;  // of the groups together
  std::string svg = open_svg(plot.title, kHeight - kNoLabel) + y_axis(y, plot.y_label) +
                    line("axis", kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom);
  if (plot.reference != 0) {
    svg += line("axis", kLeft, y(plot.reference), kWidth - kRight, y(plot.reference));
  }
  const double group_width = (kWidth - kRight - kLeft) / static_cast<double>(plot.groups.size());
  const double step = group_width / static_cast<double>(plot.series.size() + 1);
  for (size_t group = 0; group < plot.groups.size(); ++group) {
    const double begin = kLeft + static_cast<double>(group) * group_width;
    svg += text_at(begin + group_width / 2, kHeight - kBottom + 16, "middle", plot.groups[group]);
    for (size_t i = 0; i < plot.series.size(); ++i) {
      svg += draw(plot.series[i].whiskers[group], plot.series[i].colour,
                  begin + static_cast<double>(i + 1) * step, y);
    }
  }
  return svg + "</svg>";
}

std::string escape_html(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::vector<double> linear_ticks(double least, double most, int count) {
  constexpr double kLeastRange = 1e-9;  // of the values: less is rounding
  if (!(most - least > kLeastRange * std::max(std::abs(least), std::abs(most)))) most = least + 1;
  const double rough = (most - least) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough * (1 - 1e-9)) step = factor * power;
  }
  const double first = std::floor(least / step + 1e-9), last = std::ceil(most / step - 1e-9);
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::vector<double> logarithmic_ticks(double least, double most) {
  CHECK(least > 0 && most >= least);
  const auto within = [&](const std::vector<double>& factors) {
    std::vector<double> all;
    for (double power = std::floor(std::log10(least)); power <= std::ceil(std::log10(most)) + 1;
         ++power) {
      for (const double factor : factors) all.push_back(factor * std::pow(10, power));
    }
    // From the last one that is at most `least` to the first that is at least `most`.
    const auto begin = std::prev(std::upper_bound(all.begin(), all.end(), least * (1 + 1e-9)));
    const auto end = std::next(std::lower_bound(all.begin(), all.end(), most * (1 - 1e-9)));
    return std::vector<double>(begin, end);
  };
  constexpr double kFewDecades = 1e3;
  return most / least <= kFewDecades ? within({1, 2, 5}) : within({1});
}

}  // namespace outrider
