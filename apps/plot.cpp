#include "apps/plot.h"

#include "reknit/base/error.h"
#include "reknit/base/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace reknit {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 320;
constexpr double kLeft = 68;
constexpr double kRight = 14;
constexpr double kTop = 46;
constexpr double kBottom = 40;
constexpr size_t kMostPoints = 1000;
constexpr double kLargest = 1e300;  // what lies beyond has no marks, and NaN lies nowhere

// Okabe and Ito's colours, which stay apart for colour-blind readers.
constexpr std::array<const char*, 6> kColors = {"#0072b2", "#d55e00", "#009e73",
                                                "#cc79a7", "#e69f00", "#56b4e9"};

using Points = std::vector<std::pair<double, double>>;

std::string place(double value) {
  return format("%.1f", value);
}

Points finite(const Points& points) {
  Points kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept), [](const auto& point) {
    return std::abs(point.first) <= kLargest && std::abs(point.second) <= kLargest;
  });
  return kept;
}

/// The lowest and the highest point of each of kMostPoints / 2 runs of points.
Points thinned(const Points& points) {
  if (points.size() <= kMostPoints) {
    return points;
  }
  Points kept;
  const size_t runs = kMostPoints / 2;
  for (size_t run = 0; run < runs; ++run) {
    const auto begin = points.begin() + static_cast<int64_t>(run * points.size() / runs);
    const auto end = points.begin() + static_cast<int64_t>((run + 1) * points.size() / runs);
    auto [low, high] = std::minmax_element(
        begin, end, [](const auto& a, const auto& b) { return a.second < b.second; });
    kept.push_back(std::min(*low, *high));
    if (low != high) {
      kept.push_back(std::max(*low, *high));
    }
  }
  return kept;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// From values to pixels along one axis.
struct Axis {
  std::vector<double> marks;
  double from, to;  ///< pixels of the first and the last mark

  double at(double value) const {
    return from + (value - marks.front()) / (marks.back() - marks.front()) * (to - from);
  }
};

class Picture {
 public:
  explicit Picture(const Plot& plot) : plot_(plot) {
    Range x, y;
    for (const Curve& curve : plot.curves) {
      curves_.push_back(thinned(finite(curve.points)));
      for (const auto& [at, value] : curves_.back()) {
        x.add(at);
        y.add(value);
      }
    }
    const bool empty = x.low > x.high;
    x_ = {empty ? ticks(0, 1, 6) : ticks(x.low, x.high, 6), kLeft, kWidth - kRight};
    y_ = {empty ? ticks(0, 1, 5) : ticks(y.low, y.high, 5), kHeight - kBottom, kTop};
  }

  std::string text() {
    out_ = str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", place(kWidth), " ",
               place(kHeight), "\" width=\"640\" font-family=\"sans-serif\" font-size=\"12\">\n",
               "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    put(kLeft, 18, "start", plot_.title, " font-weight=\"bold\" font-size=\"14\"");
    grid();
    for (size_t i = 0; i < curves_.size(); ++i) {
      line(curves_[i], kColors[i % kColors.size()]);
    }
    legend();
    return out_ + "</svg>\n";
  }

 private:
  void put(double x, double y, const char* anchor, const std::string& text,
           const std::string& more = "") {
    out_ += str("<text x=\"", place(x), "\" y=\"", place(y), "\" text-anchor=\"", anchor, "\"",
                more, ">", escaped(text), "</text>\n");
  }

  void rule(double x1, double y1, double x2, double y2) {
    out_ += str("<path d=\"M", place(x1), " ", place(y1), "L", place(x2), " ", place(y2),
                "\" stroke=\"#ddd\"/>\n");
  }

  void grid() {
    for (const double mark : y_.marks) {
      rule(x_.from, y_.at(mark), x_.to, y_.at(mark));
      put(kLeft - 6, y_.at(mark) + 4, "end", format("%.6g", mark));
    }
    for (const double mark : x_.marks) {
      rule(x_.at(mark), y_.from, x_.at(mark), y_.to);
      put(x_.at(mark), kHeight - kBottom + 16, "middle", format("%.6g", mark));
    }
    put((x_.from + x_.to) / 2, kHeight - 6, "middle", plot_.x_label);
  }

  void line(const Points& points, const char* color) {
    if (points.size() == 1) {
      out_ += str("<circle cx=\"", place(x_.at(points[0].first)), "\" cy=\"",
                  place(y_.at(points[0].second)), "\" r=\"3\" fill=\"", color, "\"/>\n");
      return;
    }
    std::string path;
    for (const auto& [x, y] : points) {
      path += str(path.empty() ? "M" : "L", place(x_.at(x)), " ", place(y_.at(y)));
    }
    out_ += str("<path d=\"", path, "\" fill=\"none\" stroke=\"", color,
                "\" stroke-width=\"1.5\" stroke-opacity=\"0.85\"/>\n");
  }

  void legend() {
    double x = kLeft;
    for (size_t i = 0; i < curves_.size(); ++i) {
      const std::string& name = plot_.curves[i].name;
      if (name.empty()) {
        continue;
      }
      out_ += str("<rect x=\"", place(x), "\" y=\"27\" width=\"14\" height=\"4\" fill=\"",
                  kColors[i % kColors.size()], "\"/>\n");
      put(x + 18, 34, "start", name);
      x += 34 + 7 * static_cast<double>(name.size());
    }
  }

  const Plot& plot_;
  std::vector<Points> curves_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::vector<double> ticks(double low, double high, int wanted) {
  const double largest = std::max(std::abs(low), std::abs(high));
  // Values that differ in their last digits only are as flat as equal ones: no marks fit between
  // them. A flat curve runs through the middle.
  if (high - low <= std::max(1e-12 * largest, 1e-300)) {
    const double half = largest <= 1e-300 ? 1 : largest / 2;
    low -= half;
    high += half;
  }
  const double rough = (high - low) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (rough <= factor * power * (1 + 1e-9)) {
      step = factor * power;
      break;
    }
  }
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  std::vector<double> marks;
  for (double i = first; i <= last; ++i) {
    marks.push_back(i * step);
  }
  return marks;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string svg(const Plot& plot) {
  return Picture(plot).text();
}

}  // namespace reknit
