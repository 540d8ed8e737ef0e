// Checks of flag values, with errors in our words and nothing added to the help.
#pragma once

#include "reknit/base/error.h"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace reknit {

/// A whole number of at least `least`.
inline CLI::Validator at_least(int64_t least) {
  return CLI::Validator(
      [least](std::string& text) {
        int64_t value = 0;
        const bool whole = CLI::detail::lexical_cast(text, value);
        return whole && value >= least ? std::string()
                                       : str(text, " must be a whole number of at least ", least);
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
