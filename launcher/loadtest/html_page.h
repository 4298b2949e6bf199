// HtmlPage: one self-contained page, for telephones, screens light and dark, and paper. Nothing is
// loaded from elsewhere, and no script runs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/loadtest/svg_plot.h"

namespace outrider {

class HtmlPage {
 public:
  // All texts are escaped here, but for svg.
  explicit HtmlPage(const std::string& title);

  void section(const std::string& title);
  void paragraph(const std::string& text);
  void warning(const std::string& text);
  // The few numbers that matter most: {value, what it is}.
  void headline(const std::vector<std::pair<std::string, std::string>>& numbers);
  // {name, value}
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);

  struct Cell {
    std::string text;
    std::string small = {};  // below it
  };
  void table(const std::vector<std::string>& head, const std::vector<std::vector<Cell>>& rows);

  // series: named in the legend, in the order of their colours and with their mark, but for those
  // without a name; one needs no legend. Nothing where svg is empty.
  void figure(const std::string& title, const std::string& svg,
              const std::vector<std::string>& series, const std::string& caption, Mark mark);

  // Figures between these stand side by side where there is room.
  void begin_figures() { body_ += "<div class=\"figures\">\n"; }
  void end_figures() { body_ += "</div>\n"; }

  std::string text() const;

 private:
  std::string title_;  // escaped
  std::string body_;
};

}  // namespace outrider
