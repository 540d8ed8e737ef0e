// Curves as an SVG picture that needs nothing beside itself.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace reknit {

struct Curve {
  std::string name;  ///< in the legend; empty: none
  /// (x, y), x ascending; what is not finite or beyond 1e300 is left out.
  std::vector<std::pair<double, double>> points;
};

struct Plot {
  std::string title;
  std::string x_label;
  std::vector<Curve> curves;
};

/// The picture, 640 x 320, as one <svg> element; the same text for the same plot. Long
/// curves keep the least and the largest value of each pixel's points, so no peak is lost.
std::string svg(const Plot& plot);

/// Between `low` and `high`, both in reach of the outer ones: steps of 1, 2 or 5 times a
/// power of ten, about `wanted` of them. At least two, and no more than some digits of a double
/// tell apart: values that are nearly equal get those of a flat curve.
std::vector<double> ticks(double low, double high, int wanted);

/// `text` with the characters that HTML and SVG read as theirs written out.
std::string escaped(const std::string& text);

}  // namespace reknit
