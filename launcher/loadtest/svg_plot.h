// Plots as SVG, to stand in an HTML page: its style sheet gives the classes their colours (s0 … s5
// for series, axis, grid) and lines their dashes (d0 … d5), so that one plot is right in light,
// dark and print.
#pragma once

#include <string>
#include <vector>

namespace outrider {

// Of a series' line, and its dots along a path, which need not be seen in colour. Big dots have six
// shapes: round or square, whole, hollow or small.
std::string line_classes(size_t series);
std::string dots(size_t series, bool big, const std::string& path);

struct Axis {
  std::string label;
  bool logarithmic = false;  // where all values are above 0 and far apart; else linear from 0
};

struct Point {
  double x = 0, y = 0;
  std::string label = {};  // beside it, where there is room
};

struct Series {
  std::string name;
  std::vector<Point> points;
};

enum class Mark { line, dots, line_and_dots };

struct Plot {
  std::string title;  // read out where it cannot be seen
  Axis x, y;
  std::vector<Series> series;
  Mark mark = Mark::line;
};

// Points that would fall onto each other are drawn once, so its size is bounded. Empty where no
// series has a point. No value may be infinite or NaN.
std::string to_svg(const Plot& plot);

// A value and its interval, where there is one: low == high == value.
struct Whisker {
  double value = 0, low = 0, high = 0;
};

// Groups side by side, each with a whisker a series.
struct WhiskerPlot {
  std::string title;
  std::string y_label;
  std::vector<std::string> groups;
  struct Series {
    std::string name;
    size_t colour = 0;
    std::vector<Whisker> whiskers;  // one a group
  };
  std::vector<Series> series;
  // Where it is not 0: a line across, and the axis goes no farther than values are from it. Else
  // the axis begins at 0.
  double reference = 0;
};
std::string to_svg(const WhiskerPlot& plot);

// Of what a file, a flag or a server said: safe as text and in attributes.
std::string escape_html(const std::string& text);

// About `count` round numbers from `least` to `most` or a little beyond; linear steps of 1, 2 or 5
// times a power of ten.
std::vector<double> linear_ticks(double least, double most, int count);
// Powers of ten, with 2 and 5 in between where those are few. least > 0.
std::vector<double> logarithmic_ticks(double least, double most);

}  // namespace outrider
