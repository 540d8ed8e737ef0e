// How does the time of a training step grow with layers, batch, length and GPUs?
//
// Runs bench_train (which must be built) once for every point, each axis around the shape that
// is given, and prints the times beside the straight line through the first and the last point:
// a step that grows faster than it should shows as a point above it. Writes a plot for each axis.
// Usage: bench_growth CONFIG.json GPUS MICRO_BATCH LENGTH OUT_FOLDER
#include "apps/plot.h"
#include "reknit/base/error.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace reknit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Shape {
  Json config;
  int64_t gpus = 1;
  int64_t micro_batch = 8;
  int64_t length = 2048;
};

/// The key of config.json that holds the number of layers.
std::string layers_key(const Json& config) {
  for (const char* key : {"num_hidden_layers", "n_layer"}) {
    if (config.contains(key)) {
      return key;
    }
  }
  throw InputError("config.json has no num_hidden_layers and no n_layer",
                   "use a config of one of the supported model types");
}

std::string printed_by(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  REKNIT_INVARIANT(pipe != nullptr, "no process for ", command);
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    text.append(buffer.data(), n);
  }
  require<InputError>(::pclose(pipe) == 0, command, " failed:\n", text);
  return text;
}

class Growth {
 public:
  Growth(fs::path program, fs::path out) : program_(std::move(program)), out_(std::move(out)) {
    fs::create_directories(out_);
  }

  /// Milliseconds of a step.
  double measure(const Shape& shape) const {
    const fs::path config = out_ / "config.json";
    std::ofstream(config) << shape.config;
    const std::string text =
        printed_by(str("'", program_.string(), "' '", config.string(), "' ", shape.gpus, " ",
                       shape.micro_batch, " ", shape.length, " steps=10 2>&1"));
    const size_t end = text.find(" ms a step");
    require<InputError>(end != std::string::npos, "bench_train printed no time:\n", text);
    return std::stod(text.substr(text.rfind(' ', end - 1)));
  }

  /// `set` puts a value of the axis into a shape.
  template <class Set>
  void axis(const std::string& name, Shape shape, const std::vector<int64_t>& values,
            const Set& set) const {
    Curve measured{"measured", {}};
    for (const int64_t value : values) {
      set(shape, value);
      measured.points.emplace_back(value, measure(shape));
    }
    const auto [x0, y0] = measured.points.front();
    const auto [x1, y1] = measured.points.back();
    Curve line{"straight line", {{x0, y0}, {x1, y1}}};
    for (const auto& [x, y] : measured.points) {
      const double straight = x1 == x0 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
      std::printf("%-8s %6.0f   %8.1f ms   %5.2f of the line\n", name.c_str(), x, y, y / straight);
    }
    std::fflush(stdout);
    std::ofstream(out_ / ("growth-" + name + ".svg"))
        << svg({"milliseconds a step", name, {std::move(measured), std::move(line)}});
  }

 private:
  fs::path program_;
  fs::path out_;
};

/// A quarter, half, three quarters and all of `most`.
std::vector<int64_t> quarters(int64_t most) {
  std::vector<int64_t> values;
  for (int64_t part = 1; part <= 4; ++part) {
    const int64_t value = std::max<int64_t>(1, most * part / 4);
    if (values.empty() || values.back() != value) {
      values.push_back(value);
    }
  }
  return values;
}

void run(const fs::path& self, const Shape& shape, const fs::path& out) {
  const Growth growth(self.parent_path() / "bench_train", out);
  const std::string key = layers_key(shape.config);
  growth.axis("layers", shape, quarters(shape.config[key]),
              [&](Shape& s, int64_t layers) { s.config[key] = layers; });
  growth.axis("batch", shape, quarters(shape.micro_batch),
              [](Shape& s, int64_t batch) { s.micro_batch = batch; });
  growth.axis("length", shape, quarters(shape.length),
              [](Shape& s, int64_t length) { s.length = length; });
  std::vector<int64_t> gpus;
  for (int64_t n = 1; n <= shape.gpus; n *= 2) {
    gpus.push_back(n);
  }
  growth.axis("gpus", shape, gpus, [](Shape& s, int64_t n) { s.gpus = n; });
}

}  // namespace
}  // namespace reknit

int main(int argc, char** argv) {
  using namespace reknit;
  try {
    require<UsageError>(argc == 6, "bench_growth CONFIG.json GPUS MICRO_BATCH LENGTH OUT_FOLDER");
    std::ifstream file(argv[1]);
    run(std::filesystem::canonical("/proc/self/exe"),
        {Json::parse(file), std::stol(argv[2]), std::stol(argv[3]), std::stol(argv[4])}, argv[5]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
