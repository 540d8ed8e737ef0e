// Checks of flag values, with errors in our words and nothing added to the help.
#pragma once

#include "reknit/base/error.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace reknit {

/// A whole number of at least `least` and, so that sums of two cannot overflow, of at most
/// `most`.
inline CLI::Validator at_least(int64_t least, int64_t most = INT32_MAX) {
  return CLI::Validator(
      [least, most](std::string& text) {
        int64_t value = 0;
        const bool whole = CLI::detail::lexical_cast(text, value);
        if (!whole || value < least) {
          return str(text, " must be a whole number of at least ", least);
        }
        return value > most ? str(text, " must be at most ", most) : std::string();
      },
      "");
}

/// A number from `low` to `high`.
inline CLI::Validator number_within(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= low && value <= high
                   ? std::string()
                   : str(text, " must be a number from ", low, " to ", high);
      },
      "");
}

/// A finite number of at least 0.
inline CLI::Validator not_negative() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        return number && value >= 0 && value <= std::numeric_limits<double>::max()
                   ? std::string()
                   : str(text, " must be a number of at least 0");
      },
      "");
}

/// One of `names`.
inline CLI::Validator one_of(const std::vector<std::string>& names) {
  return CLI::Validator(
      [names](std::string& text) {
        std::string all;
        for (const std::string& name : names) {
          if (name == text) {
            return std::string();
          }
          all += str(all.empty() ? "" : ", ", name);
        }
        return str(text, " must be one of ", all);
      },
      "");
}

}  // namespace reknit
